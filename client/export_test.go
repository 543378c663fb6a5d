package client

// Locks is how many locks a session keeps.
func Locks(s *Session) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.locks)
}

// Queued is how many requests have not been given to the stream.
func Queued(s *Session) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.outbox.queue)
}

// EarlyLosses is how many losses are kept for grants that may still come.
func EarlyLosses(s *Session) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.early)
}

// Limits is of how many holds a session keeps the end by their MaxHold.
func Limits(s *Session) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.limits)
}
