package main

import (
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/backends"
	"github.com/locksidecar/locksidecar/internal/config"
	"github.com/locksidecar/locksidecar/internal/secretfile"
	"github.com/locksidecar/locksidecar/session"
)

// storeFlags say which store to use and how; serve has them, and run, which can
// be its own sidecar.
type storeFlags struct {
	url          string
	urlFile      string
	passwordFile string
	migrate      bool
	ttl          time.Duration
	namespace    string
	name         string
}

func addStore(cmd *cobra.Command, store, storeHelp string) *storeFlags {
	s := addStoreURL(cmd, store, storeHelp)
	f := cmd.Flags()
	f.BoolVar(&s.migrate, "migrate", true, "make and update the tables of a store that has tables; false: apply what locksidecar schema prints")
	f.DurationVar(&s.ttl, "ttl", session.DefaultTTL, "how long the store keeps locks when the sidecar dies, 500ms to 10m")
	f.StringVar(&s.name, "name", "", "name of this sidecar in lists (default $POD_NAME, else the host's name)")
	return s
}

// addStoreURL is for commands that only look.
func addStoreURL(cmd *cobra.Command, store, storeHelp string) *storeFlags {
	s := &storeFlags{ttl: session.DefaultTTL}
	f := cmd.Flags()
	s.url = store
	f.Var(&storeValue{urls: &s.url}, "store", storeHelp)
	f.StringVar(&s.urlFile, "store-file", "", "file whose only line is the URL for --store, for URLs with secrets in them")
	f.StringVar(&s.passwordFile, "store-password-file", "", "file whose only line is the password of the store's URL; read again for each connection")
	f.StringVar(&s.namespace, "namespace", "", "put before every resource name in the store: NAMESPACE/name; without a slash")
	config.Rivals(f, "store", "store-file")
	complete(cmd, "store", backends.Schemes()...)
	return s
}

// storeValue is the flag --store: URLs with spaces between them, or one each time that it is given.
type storeValue struct {
	urls  *string
	given bool
}

func (v *storeValue) String() string {
	if v.urls == nil {
		return ""
	}
	return *v.urls
}
func (v *storeValue) Type() string { return "string" }

// Set implements pflag.Value. The first URL takes the place of the default.
func (v *storeValue) Set(s string) error {
	if v.given {
		return v.Append(s)
	}
	*v.urls, v.given = s, true
	return nil
}

// Append implements pflag.SliceValue, as the next two do: in the configuration file it may be a list.
func (v *storeValue) Append(s string) error {
	*v.urls += " " + s
	return nil
}

// Replace implements pflag.SliceValue.
func (v *storeValue) Replace(all []string) error { //nolint:unparam // pflag.SliceValue wants it
	*v.urls, v.given = strings.Join(all, " "), true
	return nil
}

// GetSlice implements pflag.SliceValue.
func (v *storeValue) GetSlice() []string { return backends.URLs(*v.urls) }

// instead says that with these flags a command needs no sidecar. What the
// configuration file says of a store is for serve. A socket on the command line wins over a
// store in the environment.
func (s *storeFlags) instead(cmd *cobra.Command) {
	f := cmd.Flags()
	for _, name := range []string{"store", "store-file", "store-password-file", "migrate", "ttl", "namespace", "name"} {
		switch flag := f.Lookup(name); {
		case flag == nil:
			continue
		case name != "store" && name != "store-file":
			flag.Usage = "with --store: " + flag.Usage
			config.Needs(f, name, "store", "store-file")
		}
		config.NotInFile(f, name)
	}
	config.Hides(f, "socket", "store", "store-file")
}

// given reports whether a store was named.
func (s *storeFlags) given() bool { return s.url != "" || s.urlFile != "" }

// resolve gives the store's URL, with its secrets or the file that has the password.
func (s *storeFlags) resolve() (string, error) {
	raw := s.url
	if s.urlFile != "" {
		var err error
		if raw, err = secretfile.Read(s.urlFile); err != nil {
			return "", usage("--store-file: %w", err)
		}
	}
	if !s.migrate {
		raw = backends.WithoutMigration(raw)
	}
	if s.passwordFile == "" {
		return raw, nil
	}
	if _, err := secretfile.Read(s.passwordFile); err != nil {
		return "", usage("--store-password-file: %w", err)
	}
	path, err := filepath.Abs(s.passwordFile)
	if err == nil {
		raw, err = backends.WithPasswordFile(raw, path)
	}
	if err != nil {
		return "", usage("--store-password-file: %w", err)
	}
	return raw, nil
}
