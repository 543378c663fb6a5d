package zklock

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/locksidecar/locksidecar/backends/zklock/zksession"
	"github.com/locksidecar/locksidecar/lock"
)

func TestParseURL(t *testing.T) {
	world := []zksession.ACL{{Perms: 31, Scheme: "world", ID: "anyone"}}
	for url, want := range map[string]config{
		"zk://h":                    {addrs: []string{"h:2181"}},
		"zk://a:1,b,[::1]:3/app/x":  {addrs: []string{"a:1", "b:2181", "[::1]:3"}, chroot: "/app/x"},
		"zk://h?layout=curator":     {addrs: []string{"h:2181"}, curator: true},
		"zk://h?layout=locksidecar": {addrs: []string{"h:2181"}},
		"zk://h?timeout=250ms":      {addrs: []string{"h:2181"}, timeout: 250 * time.Millisecond},
		"zk://h?tick=500ms":         {addrs: []string{"h:2181"}, tick: 500 * time.Millisecond},
		"zk://u:p%40@h/":            {addrs: []string{"h:2181"}, user: "u", password: "p@", acl: []zksession.ACL{{Perms: 31, Scheme: "auth"}}},
	} {
		if want.timeout == 0 {
			want.timeout = defaultTimeout
		}
		if want.tick == 0 {
			want.tick = zksession.DefaultTick
		}
		if want.acl == nil {
			want.acl = world
		}
		got, err := parseURL(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(config{})); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", url, diff)
		}
	}
	for _, url := range []string{"zks://h", "zk://h?tls=true"} {
		if c, err := parseURL(url); err != nil || c.tls == nil {
			t.Errorf("%s: %+v, %v; want TLS", url, c, err)
		}
	}
}

// TestPasswordChanges: a new session authenticates with what stands in the file now.
func TestPasswordChanges(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	var b *Backend
	for _, password := range []string{"first", "second"} {
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if b == nil {
			var err error
			if b, err = Open("zk://u@h?password-file="+file, nil); err != nil {
				t.Fatal(err)
			}
		}
		if got := b.newLeaseNode("l", leaseRecord{}).config().Digest; got != "u:"+password {
			t.Errorf("with %s in the file it authenticates as %s", password, got)
		}
	}
}

func TestParseURLRefuses(t *testing.T) {
	for url, word := range map[string]string{
		"zk":                  "not a URL",
		"redis://h":           "scheme",
		"zk://":               "empty host",
		"zk://a,,b":           "empty host",
		"zk://h/a//b":         "empty part",
		"zk://h/a/../b":       `".."`,
		"zk://h/🔒":            "refuses",
		"zk://h?layout=kazoo": "layout",
		"zk://h?timeout=1":    "timeout",
		"zk://h?tick=2":       "tick",
		"zk://h?no-such=1":    "not known",
		"zk://h?tls-ca=/x":    "needs TLS",
		"zk://:cret@h":        "user and a password",
		"zk://u@h":            "user and a password",
		"zk://u%3a:secret@h":  "no colon",
	} {
		_, err := Open(url, nil)
		if !errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: got %v, want an error about %q", url, err, word)
		} else if strings.Contains(err.Error(), "cret") {
			t.Errorf("%s: the error tells the password: %v", url, err)
		}
	}
}
