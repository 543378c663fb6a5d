// Package archtest checks who imports whom.
package archtest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/locksidecar/locksidecar"

// room is one line of the table: one package.
type room struct {
	path string
	may  string // packages of ours that it may import; "all" in main programs
	test string // those that its tests may import as well
}

// The house, from the ground up. Each room imports only rooms above it in this
// table, and of them only those that it names. What is not in the table does
// not exist: a new folder needs a line of its own, which says where it belongs.
var house = []room{
	{path: "lock"},
	{path: "api/locksidecar/v1"},
	{path: "internal/jsonlines", may: "api/locksidecar/v1"},
	{path: "internal/protofields"},
	{path: "heartbeat", may: "lock"},
	{path: "internal/memory"},
	{path: "internal/workers"},
	{path: "arbiter", may: "lock", test: "backends/embedded backends/leasekit"},
	{path: "session/outcome", may: "lock"},
	{path: "session/ledger", may: "lock session/outcome"},
	{path: "waitfor", may: "lock", test: "backends/queue"},
	{path: "session", may: "lock heartbeat waitfor session/outcome session/ledger internal/workers", test: "arbiter backends/embedded"},

	// Stores never know each other.
	{path: "backends/queue", may: "lock"},
	{path: "backends/backendtest", may: "lock arbiter session session/outcome backends/queue"},
	{path: "backends/leasekit", may: "lock"},
	{path: "internal/secretfile"},
	{path: "internal/promptio"},
	{path: "backends/storeurl", may: "lock internal/secretfile"},
	{path: "backends/embedded", may: "lock backends/leasekit backends/queue", test: "backends/backendtest"},
	{path: "backends/redislock", may: "lock internal/secretfile internal/promptio backends/leasekit backends/storeurl", test: "backends/backendtest backends/backendtest/served internal/testengine"},
	{path: "backends/zklock/zksession", may: "lock", test: "internal/testengine"},
	{path: "backends/zklock", may: "lock internal/secretfile backends/leasekit backends/storeurl backends/zklock/zksession", test: "arbiter backends/backendtest internal/faultproxy internal/testengine internal/javatest"},
	{path: "backends/caslock", may: "lock backends/leasekit backends/queue", test: "backends/backendtest arbiter"},
	{path: "backends/caslock/etcd", may: "lock internal/protofields internal/secretfile backends/storeurl backends/caslock", test: "arbiter backends/backendtest backends/backendtest/served internal/testengine"},
	{path: "backends/sqllock", may: "lock backends/leasekit backends/queue backends/storeurl"},
	{path: "backends/sqllock/mysql", may: "lock backends/storeurl backends/sqllock", test: "arbiter backends/backendtest backends/backendtest/served backends/leasekit internal/testengine"},
	{path: "backends/sqllock/postgres", may: "lock backends/storeurl backends/sqllock", test: "backends/backendtest backends/backendtest/served internal/testengine"},
	{path: "backends/mysqllock/rows", may: "lock backends/leasekit backends/sqllock backends/sqllock/mysql", test: "backends/backendtest backends/backendtest/served internal/testengine"},
	{path: "backends/mysqllock/shedlock", may: "lock backends/storeurl backends/leasekit backends/sqllock backends/sqllock/mysql", test: "backends/backendtest backends/backendtest/served internal/testengine internal/javatest"},
	{path: "backends/mysqllock", may: "lock backends/storeurl backends/sqllock/mysql backends/mysqllock/rows backends/mysqllock/shedlock", test: "backends/backendtest internal/testengine"},
	{path: "backends/shards", may: "lock", test: "arbiter session session/outcome backends/backendtest backends/backendtest/served backends/embedded backends/redislock internal/testengine"},
	{path: "backends", may: "lock backends/storeurl backends/shards backends/embedded backends/redislock backends/zklock backends/caslock/etcd backends/mysqllock backends/sqllock/postgres", test: "internal/testengine"},

	{path: "localapi/peercred"},
	{path: "localapi/podid"},
	{path: "localapi", may: "lock session session/outcome internal/workers internal/jsonlines internal/promptio api/locksidecar/v1 localapi/peercred localapi/podid", test: "arbiter heartbeat waitfor backends/embedded"},
	{path: "node/csi", may: "internal/protofields localapi/podid"},
	{path: "internal/socketrule"},
	{path: "client", may: "api/locksidecar/v1 internal/jsonlines", test: "lock session localapi backends/embedded internal/socketrule"},

	{path: "internal/config"},
	{path: "internal/supervise", may: "lock"},
	{path: "internal/telemetry", may: "lock heartbeat session", test: "backends/embedded localapi api/locksidecar/v1"},
	{path: "internal/faultproxy"},
	{path: "internal/testengine", may: "internal/faultproxy"}, // nothing of production: it breaks things for everybody
	{path: "backends/backendtest/served", may: "lock backends/backendtest internal/testengine"},
	{path: "internal/javatest", may: "lock", test: "backends/embedded"},
	{path: "internal/simulation", test: "lock arbiter session backends/leasekit backends/embedded"},
	{path: "internal/archtest"},
	{path: "internal/docstest", test: "api/locksidecar/v1 internal/testengine"},
	{path: "model"},

	{path: "cmd/locksidecar", may: "all", test: "internal/testengine"},
	{path: "examples/stage"},
	{path: "examples/pace", may: "client examples/stage"},
	{path: "examples/trade", may: "client examples/stage"},
	{path: "examples/cron", may: "examples/stage"},
	{path: "examples/show", may: "internal/testengine"},
	{path: "examples", test: "client api/locksidecar/v1 internal/socketrule internal/testengine"},
}

// outsiders are libraries that only some rooms may know, with their tests.
var outsiders = []struct{ library, rooms string }{
	{"github.com/redis/go-redis", "backends/redislock internal/testengine"},
	{"github.com/go-zookeeper/zk", "backends/zklock backends/zklock/zksession internal/testengine"},
	{"go.etcd.io/etcd", "backends/caslock/etcd"},
	{"go.uber.org/zap", "backends/caslock/etcd"}, // etcd's own client wants one
	{"github.com/go-sql-driver/mysql", "backends/sqllock/mysql internal/testengine internal/docstest cmd/locksidecar examples/trade"},
	{"github.com/jackc/pgx/v5", "backends/sqllock/postgres internal/testengine internal/docstest cmd/locksidecar"},
	{"database/sql", "backends/mysqllock backends/sqllock backends/sqllock/mysql backends/sqllock/postgres backends/mysqllock/rows backends/mysqllock/shedlock internal/testengine internal/docstest cmd/locksidecar examples/trade"},
	{"google.golang.org/grpc", "api/locksidecar/v1 backends/caslock/etcd localapi node/csi internal/telemetry cmd/locksidecar"},
	{"google.golang.org/protobuf", "api/locksidecar/v1 internal/jsonlines internal/protofields localapi client backends/caslock/etcd node/csi cmd/locksidecar"},
	{"github.com/container-storage-interface", "node/csi"},
	{"k8s.io", "node/csi"},
	{"net/http", "localapi client internal/telemetry internal/testengine backends/caslock/etcd cmd/locksidecar internal/docstest examples/trade examples"},
	{"net/url", "backends/storeurl localapi cmd/locksidecar backends/mysqllock/shedlock internal/docstest examples/trade"}, // storeurl alone reads those of stores
	{"github.com/prometheus", "internal/telemetry cmd/locksidecar"},
	{"go.opentelemetry.io", "internal/telemetry cmd/locksidecar"},
	{"github.com/spf13", "internal/config cmd/locksidecar"},
	{"github.com/testcontainers", "internal/testengine"},
	{"github.com/moby/moby", "internal/testengine"},
}

// onlyTests are what no production code may import, whatever its room. Etcd's own client would
// cost each sidecar a megabyte, whatever its store, and the messages of CSI 0.3 MB of program.
const onlyTests = "testing backends/backendtest backends/backendtest/served internal/faultproxy internal/testengine internal/socketrule internal/javatest github.com/google/go-cmp go.uber.org/goleak go.etcd.io/etcd go.uber.org/zap github.com/container-storage-interface k8s.io"

// equipment are the rooms that are themselves only for tests.
const equipment = "backends/backendtest backends/backendtest/served internal/faultproxy internal/testengine internal/socketrule internal/javatest internal/archtest internal/docstest examples/show"

// pkg is what `go list -json` says about a package.
type pkg struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Error        *struct{ Err string }
}

func (p pkg) room() string { return strings.TrimPrefix(p.ImportPath, module+"/") }

func list(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports,Error", module+"/...")
	cmd.Dir = "../.."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func TestImports(t *testing.T) {
	all := list(t)
	if len(all) == 0 {
		t.Fatal("go list names no package")
	}
	for _, p := range all {
		if p.Error != nil {
			t.Errorf("%s: %s", p.ImportPath, p.Error.Err)
		}
		for _, complaint := range check(p) {
			t.Error(complaint)
		}
	}
}

// check lists what is wrong with the imports of a package.
func check(p pkg) []string {
	name := p.room()
	i := slices.IndexFunc(house, func(r room) bool { return r.path == name })
	if i < 0 {
		return []string{name + " is not in the table of internal/archtest: give it a line that says what it may import"}
	}
	r := house[i]
	var complaints []string
	for _, imported := range p.Imports {
		if !allowed(r.may, imported, name) {
			complaints = append(complaints, name+" may not import "+imported)
		}
		if oneOf(onlyTests, imported) && !oneOf(equipment, name) {
			complaints = append(complaints, name+" imports "+imported+", which is for tests only")
		}
	}
	for _, imported := range append(slices.Clone(p.TestImports), p.XTestImports...) {
		if !allowed(r.may+" "+r.test, imported, name) {
			complaints = append(complaints, "the tests of "+name+" may not import "+imported)
		}
	}
	return complaints
}

// allowed says whether a room may import a package: one of ours by the names
// of its line, another by the list of outsiders.
func allowed(names, imported, room string) bool {
	if ours, ok := strings.CutPrefix(imported, module+"/"); ok {
		return ours == room || strings.Contains(" "+names+" ", " all ") || slices.Contains(strings.Fields(names), ours)
	}
	for _, o := range outsiders {
		if below(imported, o.library) && !slices.Contains(strings.Fields(o.rooms), room) {
			return false
		}
	}
	return true
}

// oneOf says whether a package is one of those named, or below one.
func oneOf(names, imported string) bool {
	imported = strings.TrimPrefix(imported, module+"/")
	return slices.ContainsFunc(strings.Fields(names), func(n string) bool { return below(imported, n) })
}

func below(p, parent string) bool { return p == parent || strings.HasPrefix(p, parent+"/") }

// TestTable checks the table itself: that it builds a house of floors.
func TestTable(t *testing.T) {
	above := map[string]bool{}
	for _, r := range house {
		if above[r.path] {
			t.Errorf("%s stands there twice", r.path)
		}
		if path.Clean(r.path) != r.path {
			t.Errorf("%q is not a clean path", r.path)
		}
		for _, n := range strings.Fields(r.may) {
			if n != "all" && !above[n] {
				t.Errorf("%s may import %s, which does not stand above it", r.path, n)
			}
		}
		above[r.path] = true
	}
	for _, r := range house {
		for _, n := range strings.Fields(r.test) {
			if !above[n] {
				t.Errorf("the tests of %s may import %s, which is not in the table", r.path, n)
			}
		}
	}
	for _, o := range outsiders {
		for _, n := range strings.Fields(o.rooms) {
			if !above[n] {
				t.Errorf("%s may be imported by %s, which is not in the table", o.library, n)
			}
		}
	}
}

// TestCheck shows that the rules can fail.
func TestCheck(t *testing.T) {
	ours := func(names ...string) (paths []string) {
		for _, n := range names {
			paths = append(paths, module+"/"+n)
		}
		return paths
	}
	tests := []struct {
		name string
		p    pkg
		want string // part of the only complaint; empty: none
	}{
		{"as it should be", pkg{ImportPath: module + "/session", Imports: ours("lock", "heartbeat")}, ""},
		{"an unknown folder", pkg{ImportPath: module + "/util"}, "util is not in the table"},
		{"a folder below a known one", pkg{ImportPath: module + "/lock/more"}, "lock/more is not in the table"},
		{"a room that is not named", pkg{ImportPath: module + "/heartbeat", Imports: ours("session")}, "heartbeat may not import"},
		{"stores among each other", pkg{ImportPath: module + "/backends/redislock", Imports: ours("backends/embedded")}, "may not import"},
		{"a store's tests", pkg{ImportPath: module + "/backends/redislock", XTestImports: ours("backends/backendtest", "internal/testengine", "backends/redislock")}, ""},
		{"tests of another store", pkg{ImportPath: module + "/backends/redislock", TestImports: ours("backends/embedded")}, "the tests of backends/redislock may not import"},
		{"everything in the program", pkg{ImportPath: module + "/cmd/locksidecar", Imports: ours("lock", "localapi")}, ""},
		{"test equipment in the program", pkg{ImportPath: module + "/cmd/locksidecar", Imports: ours("internal/testengine")}, "for tests only"},
		{"a store that reads its URL by itself", pkg{ImportPath: module + "/backends/redislock", Imports: []string{"net/url"}}, "may not import"},
		{"etcd's own client in the program", pkg{ImportPath: module + "/backends/caslock/etcd", Imports: []string{"go.etcd.io/etcd/client/v3"}}, "for tests only"},
		{"etcd's own client in tests", pkg{ImportPath: module + "/backends/caslock/etcd", TestImports: []string{"go.etcd.io/etcd/client/v3"}}, ""},
		{"testing in production", pkg{ImportPath: module + "/lock", Imports: []string{"testing"}}, "for tests only"},
		{"the driver of a store elsewhere", pkg{ImportPath: module + "/session", Imports: []string{"github.com/redis/go-redis/v9"}}, "may not import"},
		{"the driver of a store in its room", pkg{ImportPath: module + "/backends/redislock", Imports: []string{"github.com/redis/go-redis/v9"}}, ""},
		{"gRPC in the session", pkg{ImportPath: module + "/session", TestImports: []string{"google.golang.org/grpc/codes"}}, "may not import"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := check(tt.p)
			if tt.want == "" && len(got) != 0 || tt.want != "" && (len(got) != 1 || !strings.Contains(got[0], tt.want)) {
				t.Errorf("complaints %q; want %q", got, tt.want)
			}
		})
	}
}
