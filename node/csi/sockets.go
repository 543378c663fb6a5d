package csi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

// remove removes the folder of a pod, and the socket in it. It is no error when there is none.
func (s sockets) remove(pod string) error {
	if err := errors.Join(os.RemoveAll(filepath.Join(s.path, pod)), os.RemoveAll(filepath.Join(s.path, unfinished+pod))); err != nil {
		return fmt.Errorf("remove the folder of the socket: %w", err)
	}
	return nil
}
