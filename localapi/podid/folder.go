package podid

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
)

// Folder has a file for each pod that may use the socket, named by the pod's uid, with what the
// kubelet has said of the pod. Who is looked up cannot write there.
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

// maxSaid bounds the file of a pod.
const maxSaid = 4 << 10

// names are those of Kubernetes: parts of small letters, digits and dashes, with dots between
// them. A namespace has one part, of at most 63 bytes.
var (
	namespaceName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	names         = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
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
	if !podUID.MatchString(uid) {
		return nil, errors.New("that is no uid of a pod")
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
	var s Said
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return nil, fmt.Errorf("%s: %w", uid, err)
	}
	switch {
	case d.More():
		return nil, fmt.Errorf("%s has more than one pod", uid)
	case s.UID != uid:
		return nil, fmt.Errorf("%s is of pod %q", uid, s.UID)
	case !namespaceName.MatchString(s.Namespace), !valid(s.Name), !valid(s.ServiceAccount):
		return nil, fmt.Errorf("%s has a name that Kubernetes does not allow", uid)
	}
	return &s, nil
}

func valid(name string) bool { return len(name) <= maxName && names.MatchString(name) }
