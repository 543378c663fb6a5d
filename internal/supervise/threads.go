package supervise

import (
	"runtime"
	"sync"
)

const (
	// mostProcessors is how many threads of the front or the supervisor work at a time. They have
	// little to do, and with many processors Go would want many threads.
	mostProcessors = 4
	// otherThreads are those that wait in a system call or for one, and those of Go itself: at
	// most nine were seen with two processors.
	otherThreads = 10
)

// ReserveThreads makes all threads that this process will need. Go keeps them. A program may
// use up what its user may have (ulimit -u, pids.max of a container), and Go ends a
// process that wants one more then: just when the program must be ended.
func ReserveThreads() {
	working := runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), mostProcessors))
	var there, all sync.WaitGroup
	free := make(chan struct{})
	for range min(working, mostProcessors) + otherThreads {
		there.Add(1)
		all.Go(func() {
			runtime.LockOSThread() // so that each has one of its own
			defer runtime.UnlockOSThread()
			there.Done()
			<-free
		})
	}
	there.Wait()
	close(free)
	all.Wait()
}
