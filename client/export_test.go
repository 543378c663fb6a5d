package client

// Locks is how many locks a session keeps.
func Locks(s *Session) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.locks)
}

// Queued is how many requests have not been given to gRPC.
func Queued(s *Session) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.outbox.queue)
}
