package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type settings struct {
	Store, StoreFile string
	TTL              time.Duration
	Holds            int
	Wait             bool
	UIDs             []uint
	Socket, Here     string
	Own, Part        string
}

func newFlags() (*pflag.FlagSet, *settings) {
	s := &settings{}
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.StringVar(&s.Store, "store", "embedded:", "")
	f.StringVar(&s.StoreFile, "store-file", "", "")
	f.DurationVar(&s.TTL, "ttl", 10*time.Second, "")
	f.IntVar(&s.Holds, "max-holds", 1, "")
	f.BoolVar(&s.Wait, "wait", false, "")
	f.UintSliceVar(&s.UIDs, "allow-uid", []uint{7}, "")
	f.StringVar(&s.Socket, "socket", "", "")
	f.StringVar(&s.Own, "own", "", "")
	f.StringVar(&s.Here, "here", "", "")
	f.StringVar(&s.Part, "part", "", "")
	Rivals(f, "store", "store-file")
	Needs(f, "part", "store", "store-file")
	Hides(f, "socket", "store")
	NotInFile(f, "own")
	OnlyCommandLine(f, "here")
	return f, s
}

func TestApply(t *testing.T) {
	defaults := settings{Store: "embedded:", TTL: 10 * time.Second, Holds: 1, UIDs: []uint{7}}
	with := func(change func(*settings)) settings {
		s := defaults
		change(&s)
		return s
	}
	for _, c := range []struct {
		name    string
		args    []string
		env     map[string]string
		file    string
		want    settings
		wantErr string // a part of it
	}{
		{name: "defaults", want: defaults},
		{name: "file", file: "# a comment\nttl: 5s\nmax-holds: 3\nwait: true\nallow-uid: [1, 2]\n", want: with(func(s *settings) {
			s.TTL, s.Holds, s.Wait, s.UIDs = 5*time.Second, 3, true, []uint{1, 2}
		})},
		{name: "empty list", file: "allow-uid: []", want: with(func(s *settings) { s.UIDs = []uint{} })},
		{name: "list of one", file: "allow-uid: [4]", want: with(func(s *settings) { s.UIDs = []uint{4} })},
		{name: "file of comments", file: "# nothing\n", want: defaults},
		{name: "env over file", file: "ttl: 5s", env: map[string]string{"LOCKSIDECAR_TTL": "6s"},
			want: with(func(s *settings) { s.TTL = 6 * time.Second })},
		{name: "flag over env over file", args: []string{"--ttl=7s"}, file: "ttl: 5s", env: map[string]string{"LOCKSIDECAR_TTL": "6s"},
			want: with(func(s *settings) { s.TTL = 7 * time.Second })},
		{name: "flag that says the default", args: []string{"--ttl=10s"}, file: "ttl: 5s", want: defaults},
		{name: "dashes in env", env: map[string]string{"LOCKSIDECAR_MAX_HOLDS": "9", "LOCKSIDECAR_ALLOW_UID": "1,2"},
			want: with(func(s *settings) { s.Holds, s.UIDs = 9, []uint{1, 2} })},
		{name: "empty env", file: "ttl: 5s", env: map[string]string{"LOCKSIDECAR_TTL": ""},
			want: with(func(s *settings) { s.TTL = 5 * time.Second })},
		{name: "unknown env", env: map[string]string{"LOCKSIDECAR_PORT": "tcp://10.0.0.1:80"}, want: defaults},
		{name: "key of another command", file: "drain: 5s", want: defaults},
		{name: "rival of a higher place", file: "store: redis://file", env: map[string]string{"LOCKSIDECAR_STORE_FILE": "/secret"},
			want: with(func(s *settings) { s.StoreFile = "/secret" })},

		{name: "hidden by the command line", args: []string{"--socket=s"}, env: map[string]string{"LOCKSIDECAR_STORE": "redis://env"}, file: "store: redis://file",
			want: with(func(s *settings) { s.Socket = "s" })},
		{name: "hidden only by the command line", env: map[string]string{"LOCKSIDECAR_STORE": "redis://env", "LOCKSIDECAR_SOCKET": "s"},
			want: with(func(s *settings) { s.Socket, s.Store = "s", "redis://env" })},
		{name: "not in the file", file: "own: x\nhere: x", want: defaults},
		{name: "not in the file but in env", env: map[string]string{"LOCKSIDECAR_OWN": "e", "LOCKSIDECAR_HERE": "e"},
			want: with(func(s *settings) { s.Own = "e" })},
		{name: "yes", file: "wait: yes", want: with(func(s *settings) { s.Wait = true })},
		{name: "on in env", env: map[string]string{"LOCKSIDECAR_WAIT": "On"}, want: with(func(s *settings) { s.Wait = true })},
		{name: "off", args: []string{}, file: "wait: off", want: defaults},
		{name: "one document", file: "---\nttl: 5s\n", want: with(func(s *settings) { s.TTL = 5 * time.Second })},

		{name: "needs what is in env", args: []string{"--part=p"}, env: map[string]string{"LOCKSIDECAR_STORE": "e"},
			want: with(func(s *settings) { s.Part, s.Store = "p", "e" })},
		{name: "needs what is in file", args: []string{"--part=p"}, file: "store-file: f",
			want: with(func(s *settings) { s.Part, s.StoreFile = "p", "f" })},
		{name: "needs what is not there", args: []string{"--part=p"}, wantErr: "--part means nothing without --store"},
		{name: "in env for another command", env: map[string]string{"LOCKSIDECAR_PART": "p"}, want: with(func(s *settings) { s.Part = "p" })},
		{name: "both of which one hides the other", args: []string{"--socket=s", "--store=x"}, wantErr: "two ways to say one thing"},
		{name: "two documents", file: "ttl: 5s\n---\nttl: 6s\n", wantErr: "more than one YAML document"},
		{name: "unknown key", file: "ttl: 5s\nmax-hold: 3\n", wantErr: `line 2: unknown key "max-hold"; did you mean max-holds?`},
		{name: "underscores", file: "max_holds: 3\n", wantErr: `unknown key "max_holds"; did you mean max-holds?`},
		{name: "unknown key like none", file: "colour: red\n", wantErr: `line 1: unknown key "colour"`},
		{name: "key twice", file: "ttl: 5s\nttl: 6s\n", wantErr: "line 2: ttl is there already, in line 1"},
		{name: "bad value in file", file: "\nttl: soon\n", wantErr: `line 2: ttl: invalid value "soon"`},
		{name: "bad item of a list", file: "allow-uid: [1, x]\n", wantErr: `line 1: allow-uid: invalid value "1,x"`},
		{name: "item without a value", file: "allow-uid: [1, ~]\n", wantErr: "must be a list of plain values"},
		{name: "list in a list", file: "allow-uid: [1, [2]]\n", wantErr: "must be a list of plain values"},
		{name: "no value", file: "ttl:\n", wantErr: "ttl has no value"},
		{name: "list for one", file: "ttl: [1s, 2s]\n", wantErr: "takes one value"},
		{name: "map for one", file: "ttl: {a: b}\n", wantErr: "must be a plain value"},
		{name: "not a map", file: "- ttl\n", wantErr: "must be lines of KEY: VALUE"},
		{name: "not YAML", file: "ttl: [\n", wantErr: "config file"},
		{name: "bad value in env", env: map[string]string{"LOCKSIDECAR_TTL": "soon"}, wantErr: `environment variable LOCKSIDECAR_TTL: invalid value "soon"`},
		{name: "rivals as flags", args: []string{"--store=a", "--store-file=b"}, wantErr: "give one of them"},
		{name: "rivals in env", env: map[string]string{"LOCKSIDECAR_STORE": "a", "LOCKSIDECAR_STORE_FILE": "b"}, wantErr: "set one of them"},
		{name: "rivals in file", file: "store: a\nstore-file: b\n", wantErr: "keep one of them"},
	} {
		t.Run(c.name, func(t *testing.T) {
			flags, got := newFlags()
			if err := flags.Parse(c.args); err != nil {
				t.Fatal(err)
			}
			src := Source{
				Env:   func(name string) (string, bool) { v, ok := c.env[name]; return v, ok },
				Known: []string{"drain"},
			}
			if c.file != "" {
				src.File = filepath.Join(t.TempDir(), "config.yaml")
				if err := os.WriteFile(src.File, []byte(c.file), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			err := Apply(flags, src)
			if c.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantErr) {
					t.Fatalf("error %v, want one with %q", err, c.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, *got); d != "" {
				t.Errorf("settings (-want +got):\n%s", d)
			}
		})
	}
}

func TestApplyFileThatIsNotThere(t *testing.T) {
	flags, _ := newFlags()
	err := Apply(flags, Source{Env: func(string) (string, bool) { return "", false }, File: "/does/not/exist"})
	if err == nil || !strings.Contains(err.Error(), "/does/not/exist") {
		t.Errorf("error %v does not name the file", err)
	}
}

func TestNearest(t *testing.T) {
	names := []string{"store", "store-file", "socket", "ttl", "max-holds"}
	for name, want := range map[string]string{
		"stor": "store", "STORE": "store", "sokcet": "socket", "max_holds": "max-holds", "tll": "ttl", "colour": "", "storefile": "store-file",
	} {
		if got := Nearest(name, names); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", name, got, want)
		}
	}
}
