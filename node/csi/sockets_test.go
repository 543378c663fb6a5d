package csi

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// A folder goes also while the agent makes sockets in it.
func TestRemovedWhileTheAgentMakesSockets(t *testing.T) {
	s := sockets{path: t.TempDir()}
	path := filepath.Join(s.path, one.uid)
	stop := make(chan struct{})
	var agent sync.WaitGroup
	for who := range 2 {
		agent.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				_ = syscall.Mknod(filepath.Join(path, fmt.Sprint(who, "-", n)), syscall.S_IFSOCK|0o600, 0) // there may be no folder
			}
		})
	}
	defer agent.Wait()
	defer close(stop)
	for range 500 {
		if err := s.make(one.uid); err != nil {
			t.Fatal(err)
		}
		if err := s.remove(one.uid); err != nil {
			t.Fatal(err)
		}
		if entries, err := os.ReadDir(s.path); err != nil || len(entries) > 0 {
			t.Fatalf("left: %v %v", entries, err)
		}
	}
}

// When the agent gets another user, the driver gives it the folders of pods that run: else it could make no socket there, and
// these pods would have no locks any more.
func TestAgentHasAnotherUser(t *testing.T) {
	n := newNode(t)
	p := n.start()
	n.must(p.publish(one, "locks"))
	p.kill()
	n.must(os.Lchown(n.socket(one), agentIs+1, agentIs+1)) // as a driver with that setting has made it
	p = n.start()
	for _, of := range []pod{one, another} {
		n.must(p.publish(of, "more"))
		var folder syscall.Stat_t
		if err := syscall.Stat(n.socket(of), &folder); err != nil || folder.Uid != agentIs || folder.Gid != agentIs {
			t.Errorf("the folder of a pod: %v, user %d", err, folder.Uid)
		}
	}
}
