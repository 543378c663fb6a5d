package storeurl

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/internal/secretfile"
)

// DefaultPrefix is the usual prefix of the names of tables.
const DefaultPrefix = "locksidecar_"

// SQL is what the URL of every SQL store says:
//
//	SCHEME://[USER[:PASSWORD]@]HOST[:PORT][,HOST[:PORT]…]/DATABASE[?OPTION=VALUE&…]
type SQL struct {
	Addrs          []string // host:port, tried in this order; the first that takes writes is used
	Socket         string   // path of a Unix socket, in place of Addrs
	User, Password string
	Database       string
	Prefix         string        // of the names of tables
	Migrate        bool          // create tables as needed
	Timeout        time.Duration // of one request, without the time that it may wait for a row
	MaxConnections int           // 0: as usual
	TLS            *TLS          // nil: none, or not read yet

	PasswordFile *secretfile.File // where Password stands; nil: in the URL

	// Options are where options are read that not all have. Whoever has read all calls its
	// Err.
	Options *Options
}

// ParseSQL reads a URL with one of the schemes, but for TLS.
func ParseSQL(raw, defaultPort string, schemes []string) (SQL, error) {
	u, err := Parse(raw)
	if err != nil {
		return SQL{}, err
	}
	if !slices.Contains(schemes, u.Scheme) {
		return SQL{}, Invalid(fmt.Sprintf("scheme %q is not one of %s", u.Scheme, strings.Join(schemes, ", ")))
	}
	if u.Path == "" {
		return SQL{}, Invalid("lacks the name of the database: " + schemes[0] + "://HOST[:PORT]/DATABASE")
	}
	o := u.Options
	s := SQL{Addrs: u.Addrs(defaultPort), User: u.User, Password: u.Password, PasswordFile: u.PasswordFile, Database: u.Path, Options: o}
	s.Socket = o.String("socket", "")
	s.Prefix = o.String("prefix", DefaultPrefix)
	if CheckPrefix(s.Prefix) != nil {
		o.Refuse("prefix", NameRule)
	}
	s.Migrate = o.Bool("migrate", true)
	s.Timeout = o.Duration("timeout", time.Second, 10*time.Millisecond, time.Minute)
	s.MaxConnections = o.Int("max-connections", 0, 1, 10_000)
	return s, nil
}

// PasswordNow is the password for a new connection.
func (s *SQL) PasswordNow() string { return PasswordNow(s.Password, s.PasswordFile) }

// IsName tells whether a name of a table, schema or database needs no care in any place of
// a statement, nor in a file name of a server.
func IsName(name string, most int) bool { return IsPlain(name, "_$-", most) }

// IsPlain tells whether text has 1 to most characters, which are letters and digits of ASCII, and
// those in more.
func IsPlain(text, more string, most int) bool {
	const usual = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	return text != "" && len(text) <= most && strings.Trim(text, usual+more) == ""
}

// NameRule completes the sentence of a name or prefix that is refused.
const NameRule = "must have at most 32 letters, digits, _, $ and -"

// CheckPrefix refuses what the names of tables must not begin with. The error is
// lock.ErrInvalid.
func CheckPrefix(prefix string) error {
	if prefix != "" && !IsName(prefix, 32) {
		return Invalid("option prefix " + NameRule)
	}
	return nil
}
