package csi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/locksidecar/locksidecar/localapi/podid"
)

// sockets is the folder that has one for each pod, named by the pod's uid. That is mounted into the pod, and belongs to
// the agent, who makes a socket in it. So each pod has a line of its own in which its connections wait: one that
// connects as fast as it can is in nobody else's way. In the folder itself only root may make anything.
type sockets struct {
	path  string
	owner int // the agent's user and group
}

// unfinished begins the name of a folder that is not the agent's yet. The agent looks at no such name.
const unfinished = "."

// of opens the folder of a pod, and makes it where it is missing.
func (s sockets) of(pod string) (dir, error) {
	d, err := s.open(pod)
	if !errors.Is(err, fs.ErrNotExist) {
		return d, err
	}
	if err := s.make(pod); err != nil {
		return noDir, fmt.Errorf("make the folder of the socket: %w", err)
	}
	return s.open(pod)
}

// make makes it as a whole.
func (s sockets) make(pod string) error {
	half := filepath.Join(s.path, unfinished+pod)
	err := os.RemoveAll(half) // of a driver that was killed
	if err == nil {
		err = makeFolder(half)
	}
	if err == nil && s.owner != 0 {
		err = os.Lchown(half, s.owner, s.owner)
	}
	if err == nil {
		err = os.Rename(half, filepath.Join(s.path, pod))
	}
	if err != nil {
		err = errors.Join(err, os.RemoveAll(half))
	}
	return err
}

func (s sockets) open(pod string) (dir, error) {
	d, err := openFolder(filepath.Join(s.path, pod))
	if err != nil {
		return noDir, fmt.Errorf("open the folder of the socket: %w", err)
	}
	return d, nil
}

// remove removes the folder of a pod, and the socket in it. It is no error when there is none. The agent may be making
// a socket there at that moment. So the folder first gets a name at which the agent does not look.
func (s sockets) remove(pod string) error {
	half := filepath.Join(s.path, unfinished+pod)
	err := os.RemoveAll(half)
	if err == nil {
		err = os.Rename(filepath.Join(s.path, pod), half)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil:
		err = removeAll(half)
	}
	if err != nil {
		return fmt.Errorf("remove the folder of the socket: %w", err)
	}
	return nil
}

// removeAll is os.RemoveAll of a folder that has a new name: what had looked up the old one before may still
// come, but no more than that.
func removeAll(path string) (err error) {
	const often = 10
	for range often {
		if err = os.RemoveAll(path); !errors.Is(err, unix.ENOTEMPTY) {
			break
		}
	}
	return err
}

// give gives the folders that are there to the agent, whose user may have been another one when they were made. The socket
// of an agent that runs stays.
func (s sockets) give() error {
	if s.owner == 0 {
		return nil // else they stay whose they are
	}
	entries, err := os.ReadDir(s.path)
	for _, e := range entries {
		if !e.IsDir() || !podid.ValidPod(e.Name()) {
			continue
		}
		if e := os.Lchown(filepath.Join(s.path, e.Name()), s.owner, s.owner); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}
