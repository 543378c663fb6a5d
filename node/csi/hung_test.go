package csi

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A pod's volume of another driver, whose file system does not answer, or not root, holds up nobody: not the pod's own end, and
// not other pods. Such file systems are common: the program that answers may be a container of the pod itself.
func TestFileSystemThatDoesNotAnswer(t *testing.T) {
	for name, owner := range map[string]int{"nobody": 0, "not root": agentIs} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			fuse, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
			if err != nil {
				t.Skip("needs FUSE: ", err)
			}
			defer func() { _ = fuse.Close() }() // then the kernel answers in its place
			p := n.start()
			n.must(p.publish(one, "locks"))
			n.must(p.publish(one, "more"))
			foreign := n.target(one, "foreign")
			n.must(os.MkdirAll(foreign, 0o755))
			options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=%d,group_id=0", fuse.Fd(), owner)
			if err := unix.Mount("foreign", foreign, "fuse", 0, options); err != nil {
				t.Skip("needs FUSE: ", err)
			}
			defer func() { _ = unix.Unmount(foreign, unix.MNT_DETACH) }()
			done := make(chan error, 1)
			go func() {
				for _, volume := range []string{"locks", "more"} {
					if err := p.unpublish(one, volume); err != nil {
						done <- fmt.Errorf("the pod itself cannot end: %w", err)
						return
					}
				}
				done <- p.publish(another, "locks")
			}()
			select {
			case err := <-done:
				n.must(err)
			case <-time.After(patience):
				t.Error("it waits for the file system of another driver")
				_ = fuse.Close()
				t.Log(<-done)
			}
			_ = fuse.Close()
			n.must(unix.Unmount(foreign, unix.MNT_DETACH))
			n.want("at the end", 1, another)
		})
	}
}
