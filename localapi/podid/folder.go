package podid

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
)

// Folder has a file for each pod that may use the socket, named by the pod's uid, with what the
// kubelet has said of the pod. Who is looked up cannot write there. The driver of the node's volumes writes it.
type Folder string

// Said is what the kubelet has said of a pod: the content of its file, as JSON.
type Said struct {
	UID            string `json:"uid"`
	Namespace      string `json:"namespace"`
	Name           string `json:"name"`
	ServiceAccount string `json:"serviceAccount"`
}

// Principal is who a process is.
type Principal struct {
	Namespace      string
	ServiceAccount string
	Pod            string // its name
	Container      string // its id
}

const (
	// maxSaid bounds the file of a pod.
	maxSaid = 4 << 10
	// unfinished begins the name of a file that is being written.
	unfinished = "."
	// readable is the mode of a file: who looks pods up is another user than who writes.
	readable = 0o644
)

// ErrInvalid: Kubernetes does not allow such a pod.
var ErrInvalid = errors.New("no pod of Kubernetes")

// names are those of Kubernetes: parts of small letters, digits and dashes, with dots between
// them. A namespace has one part, of at most 63 bytes.
var (
	namespaceName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`) })
	names         = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	})
)

const maxName = 253

// Principal says who has processes at a place, that Pod has given. fs.ErrNotExist: the kubelet
// has said nothing of that pod.
func (f Folder) Principal(p Place) (Principal, error) {
	said, err := f.read(p.Pod)
	if err != nil {
		return Principal{}, fmt.Errorf("look up pod %s: %w", p.Pod, err)
	}
	return Principal{Namespace: said.Namespace, ServiceAccount: said.ServiceAccount, Pod: said.Name, Container: p.Container}, nil
}

func (f Folder) read(uid string) (*Said, error) {
	if !podUID().MatchString(uid) {
		return nil, fmt.Errorf("%w: that is no uid", ErrInvalid)
	}
	root, err := os.OpenRoot(string(f))
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	info, err := root.Lstat(uid)
	if err != nil {
		return nil, err
	}
	if info.Mode().Type() != 0 || info.Size() > maxSaid {
		return nil, fmt.Errorf("%s is no file of at most %d bytes: %w", uid, maxSaid, fs.ErrInvalid)
	}
	file, err := root.Open(uid)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, maxSaid))
	if err != nil {
		return nil, err
	}
	s := &Said{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(s); err != nil {
		return nil, fmt.Errorf("%s: %w", uid, err)
	}
	if d.More() {
		return nil, fmt.Errorf("%s has more than one pod", uid)
	}
	if s.UID != uid {
		return nil, fmt.Errorf("%s is of pod %q", uid, s.UID)
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", uid, err)
	}
	return s, nil
}

// check tells whether Kubernetes allows such names.
func (s *Said) check() error {
	if !podUID().MatchString(s.UID) || !namespaceName().MatchString(s.Namespace) || !valid(s.Name) || !valid(s.ServiceAccount) {
		return fmt.Errorf("%w: %q, %q in %q, of %q", ErrInvalid, s.UID, s.Name, s.Namespace, s.ServiceAccount)
	}
	return nil
}

// Write says of a pod what the kubelet has said, in place of what was said before. Its file is
// there as a whole or not at all, also when the process is killed; what is left then Tidy removes. One
// process writes at a time.
func (f Folder) Write(s Said) error {
	if err := s.check(); err != nil {
		return err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(string(f))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	begun := unfinished + s.UID
	if err := root.RemoveAll(begun); err != nil {
		return err
	}
	file, err := root.OpenFile(begun, os.O_WRONLY|os.O_CREATE|os.O_EXCL, readable)
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	if err == nil {
		err = file.Chmod(readable) // whatever the umask
	}
	if e := file.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = root.Rename(begun, s.UID)
	}
	if err != nil {
		err = errors.Join(err, root.RemoveAll(begun))
	}
	return err
}

// Remove forgets a pod. It is no error when nothing was said of it.
func (f Folder) Remove(uid string) error {
	if !podUID().MatchString(uid) {
		return fmt.Errorf("%w: that is no uid", ErrInvalid)
	}
	root, err := os.OpenRoot(string(f))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if err := root.Remove(uid); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Pods are the uids of which something was said.
func (f Folder) Pods() (uids []string, err error) {
	files, err := os.ReadDir(string(f))
	for _, file := range files {
		if podUID().MatchString(file.Name()) {
			uids = append(uids, file.Name())
		}
	}
	return uids, err
}

// Tidy removes what a Write has left that was cut off.
func (f Folder) Tidy() error {
	files, err := os.ReadDir(string(f))
	for _, file := range files {
		if uid, ok := strings.CutPrefix(file.Name(), unfinished); ok && podUID().MatchString(uid) {
			err = errors.Join(err, os.Remove(filepath.Join(string(f), file.Name())))
		}
	}
	return err
}

// ValidNamespace tells whether a namespace of Kubernetes may have that name.
func ValidNamespace(name string) bool { return namespaceName().MatchString(name) }

// ValidPod tells whether this is the uid of a pod.
func ValidPod(uid string) bool { return podUID().MatchString(uid) }

func valid(name string) bool { return len(name) <= maxName && names().MatchString(name) }
