package csi

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"golang.org/x/sys/unix"
)

// dir is an open folder. It stays the same one, whatever becomes of its name.
type dir int

const noDir dir = -1

const asPath = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC

// openFolder opens a folder of the node. Of its path the last part may be no link.
func openFolder(path string) (dir, error) {
	fd, err := unix.Open(path, asPath|unix.O_NOFOLLOW, 0)
	if err != nil {
		return noDir, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return dir(fd), nil
}

// open opens a folder below this one, through no link.
func (d dir) open(below string) (dir, error) {
	fd, err := unix.Openat2(int(d), below, &unix.OpenHow{
		Flags:   asPath,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return noDir, &fs.PathError{Op: "open", Path: below, Err: err}
	}
	return dir(fd), nil
}

func (d dir) close() { _ = unix.Close(int(d)) }

// path leads to this folder, by whatever name, as long as it is open.
func (d dir) path() string { return "/proc/self/fd/" + strconv.Itoa(int(d)) }

// identity is that of a folder, on this node.
type identity struct {
	major, minor uint32
	inode        uint64
}

func (d dir) identity() (identity, error) {
	var s unix.Statx_t
	if err := unix.Statx(int(d), "", unix.AT_EMPTY_PATH, unix.STATX_INO, &s); err != nil {
		return identity{}, fmt.Errorf("look at a folder: %w", err)
	}
	return identity{s.Dev_major, s.Dev_minor, s.Ino}, nil
}

// mounted tells whether something is mounted at a name in this folder, and whether that is the folder with this identity.
// It follows no link. It does not ask the file system that is mounted there, unless that is the folder's own: one of another
// driver may not answer, or not root.
func (d dir) mounted(name string, folder identity) (some, it bool, err error) {
	s, err := d.statx(name, 0) // the kernel itself tells the device, and that it is a mount
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, false, nil
	case err != nil:
		return false, false, err
	case s.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0:
		return false, false, errors.New("this kernel does not tell what is a mount: Linux 5.8 does")
	case s.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0:
		return false, false, nil
	case s.Dev_major != folder.major || s.Dev_minor != folder.minor:
		return true, false, nil
	}
	if s, err = d.statx(name, unix.STATX_INO); err != nil {
		return true, false, err
	}
	return true, identity{s.Dev_major, s.Dev_minor, s.Ino} == folder, nil
}

func (d dir) statx(name string, mask int) (s unix.Statx_t, err error) {
	err = unix.Statx(int(d), name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, mask, &s)
	if err != nil {
		err = fmt.Errorf("look at %s: %w", name, err)
	}
	return s, err
}

// unmount unmounts all that is mounted at a name in this folder, and tells how much that was. Who
// still has a file open there does not keep it.
func (d dir) unmount(name string) (n int, err error) {
	for ; ; n++ {
		there, _, err := d.mounted(name, identity{})
		if err != nil || !there {
			return n, err
		}
		if err := unix.Unmount(d.path()+"/"+name, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return n, fmt.Errorf("unmount: %w", err)
		}
	}
}

// bind mounts a folder on another one, without what is mounted beneath it. The mount appears as a
// whole: nothing on it can be run, and it is no device's. It is in no group with the folder's own
// mount, so that what is mounted at the one never comes to the other. Nothing can be written through it,
// by root neither: for a container with a subPath the kubelet makes that folder in the volume. Volumes say
// readOnly: true, and such volumes the kubelet does not label for SELinux.
func bind(what, on dir) error {
	tree, err := unix.OpenTree(int(what), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("copy the mount of the socket's folder: %w", err)
	}
	defer func() { _ = unix.Close(tree) }()
	err = unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{
		Attr_set:    unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC,
		Propagation: unix.MS_PRIVATE,
	})
	if err != nil {
		return fmt.Errorf("set what the mount allows: %w", err)
	}
	if err := unix.MoveMount(tree, "", int(on), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount the socket's folder: %w", err)
	}
	return nil
}
