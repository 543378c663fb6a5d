package docstest

import (
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

var (
	helpFlag = regexp.MustCompile(`(?m)^ +(?:-\w, |    )--([a-z][a-z-]*)`)
	docFlag  = regexp.MustCompile("`(?:-\\w`, `)?--([a-z][a-z-]*)")
	variable = regexp.MustCompile(`LOCKSIDECAR_[A-Z_]*[A-Z]`)
)

// help is what a subcommand says of itself.
func help(t *testing.T, command ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "locksidecar"), append(command, "--help")...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// path is the subcommand that the docs name so.
func path(name string) []string {
	if name == "take" || name == "extend" {
		return []string{"detached", name}
	}
	if name == "reset" {
		return []string{"outcomes", name}
	}
	return []string{name}
}

// flags are those in the help of a subcommand.
func flags(t *testing.T, command ...string) map[string]bool {
	t.Helper()
	found := make(map[string]bool)
	for _, m := range helpFlag.FindAllStringSubmatch(help(t, command...), -1) {
		found[m[1]] = true
	}
	delete(found, "help")
	return found
}

// section is what stands under a heading.
func section(t *testing.T, page, title string) string {
	t.Helper()
	_, rest, ok := strings.Cut(pages(t)[page], "\n## "+title+"\n")
	if !ok {
		t.Fatalf("%s has no heading %q", page, title)
	}
	text, _, _ := strings.Cut(rest, "\n## ")
	return text
}

// rows are the first cells of the tables in a text.
func rows(text string) []string {
	var cells []string
	for line := range strings.Lines(text) {
		if cell, ok := strings.CutPrefix(line, "| "); ok {
			cell, _, _ = strings.Cut(cell, " | ")
			cells = append(cells, cell)
		}
	}
	return cells
}

// The table of settings has the flags of serve, and the variables that go with them.
func TestServeFlags(t *testing.T) {
	documented := make(map[string]bool)
	for _, row := range regexp.MustCompile("(?m)^\\| `--([a-z-]+)` \\| `([A-Z_]+)` \\|").FindAllStringSubmatch(section(t, "docs/settings.md", "`serve`"), -1) {
		documented[row[1]] = true
		if want := strings.ToUpper(strings.ReplaceAll(row[1], "-", "_")); row[2] != want {
			t.Errorf("--%s: the variable is …%s and not …%s", row[1], want, row[2])
		}
	}
	if want := flags(t, "serve"); !maps.Equal(documented, want) {
		t.Errorf("docs/settings.md has the flags %v, serve has %v", sorted(documented), sorted(want))
	}
}

// The flags of the other subcommands are in their table, each of a command that has it.
func TestOtherFlags(t *testing.T) {
	commands := []string{"run", "lead", "leader", "once", "list", "get", "watch", "deadlocks", "release", "outcomes", "reset", "take", "extend", "info", "health", "version", "schema", "shards", "man", "csi"}
	has := make(map[string]map[string]bool)
	for _, c := range commands {
		has[c] = flags(t, path(c)...)
	}
	text := section(t, "docs/settings.md", "Other subcommands")
	documented := make(map[string]bool) // "run --wait"
	for _, row := range regexp.MustCompile(`(?m)^\| (.*?) \| (.*?) \|`).FindAllStringSubmatch(text, -1) {
		for _, f := range docFlag.FindAllStringSubmatch(row[1], -1) {
			of := regexp.MustCompile("`([a-z]+)`").FindAllStringSubmatch(row[2], -1)
			names := make([]string, 0, len(of))
			for _, c := range of {
				names = append(names, c[1])
			}
			if strings.HasPrefix(row[2], "all") {
				names = slices.DeleteFunc(slices.Clone(commands), func(c string) bool { return slices.Contains(names, c) })
			}
			for _, c := range names {
				documented[c+" --"+f[1]] = true
				if !has[c][f[1]] {
					t.Errorf("docs/settings.md gives %s a flag --%s", c, f[1])
				}
			}
		}
	}
	for _, c := range commands {
		for _, f := range sorted(has[c]) {
			if !documented[c+" --"+f] && f != "config" {
				t.Errorf("docs/settings.md lacks --%s of %s", f, c)
			}
		}
	}
}

// foreign are flags of other programs in the pages' prose.
var foreign = []string{"grace-period", "force", "set", "unix-socket", "path-as-is", "runtime-config", "delete-emptydir-data", "bump-revision", "auto-compaction-mode", "cluster", "cgroup-root", "single-transaction"}

// No page names a flag that the program does not have.
func TestFlagsInProse(t *testing.T) {
	known := make(map[string]bool)
	for _, c := range []string{"serve", "run", "lead", "leader", "once", "list", "get", "watch", "deadlocks", "release", "outcomes", "reset", "take", "extend", "info", "health", "version", "schema", "shards", "man", "csi"} {
		maps.Copy(known, flags(t, path(c)...))
	}
	for _, f := range append(foreign, "version", "help") {
		known[f] = true
	}
	all := pages(t)
	for _, page := range sorted(all) {
		if !strings.HasPrefix(page, "docs/") && page != "README.md" || page == "docs/performance.md" {
			continue
		}
		for _, m := range docFlag.FindAllStringSubmatch(prose(all[page]), -1) {
			if !known[m[1]] && !strings.HasSuffix(m[1], "-") { // "--log-…"
				t.Errorf("%s: the program has no flag --%s", page, m[1])
			}
		}
	}
}

// Each LOCKSIDECAR_… variable of a page is one of a flag, or stands in the code.
func TestVariables(t *testing.T) {
	known := make(map[string]bool)
	for _, c := range []string{"serve", "run", "watch", "schema", "health", "release"} {
		for f := range flags(t, c) {
			known["LOCKSIDECAR_"+strings.ToUpper(strings.ReplaceAll(f, "-", "_"))] = true
		}
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			if d != nil && slices.Contains([]string{".git", "bin", "node_modules", "target", "docstest"}, d.Name()) {
				return filepath.SkipDir
			}
			return err
		}
		if !slices.Contains([]string{".go", ".py", ".js", ".java", ".php", ".rb", ".rs", ".sh", ""}, filepath.Ext(path)) || d.Type()&fs.ModeSymlink != 0 {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, v := range variable.FindAllString(string(text), -1) {
			known[v] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	known["LOCKSIDECAR_TEST"] = true // "LOCKSIDECAR_TEST_…"
	// testengine puts the kind of a store into the name.
	for _, kind := range []string{"REDIS", "REDIS_CLUSTER", "REDIS_SENTINEL", "ZOOKEEPER", "ZOOKEEPER_ENSEMBLE", "ETCD", "ETCD_CLUSTER", "MARIADB", "MYSQL", "POSTGRES", "PGBOUNCER"} {
		known["LOCKSIDECAR_TEST_"+kind+"_URL"] = true
	}
	all := pages(t)
	for _, page := range sorted(all) {
		for _, v := range variable.FindAllString(all[page], -1) {
			if !known[v] {
				t.Errorf("%s: nothing reads %s", page, v)
			}
		}
	}
}

// The exit statuses in the settings are those that the help of run and once has; the guide has those of run.
func TestStatuses(t *testing.T) {
	for _, command := range []string{"run", "once"} {
		_, text, _ := strings.Cut(help(t, command), "Exit status:\n")
		text, _, _ = strings.Cut(text, "\nUsage:")
		want := make(map[string]bool)
		for _, m := range regexp.MustCompile(`(?m)^  (\d+)  `).FindAllStringSubmatch(text, -1) {
			want[m[1]] = true
		}
		if len(want) < 5 {
			t.Fatalf("the help of %s has only the statuses %v", command, sorted(want))
		}
		settings := make(map[string]bool)
		for _, row := range regexp.MustCompile("(?m)^\\| ([\\d, ]+)[^|]* \\| (`[^|]*) \\|").FindAllStringSubmatch(section(t, "docs/settings.md", "Exit statuses"), -1) {
			for _, n := range regexp.MustCompile(`\d+`).FindAllString(row[1], -1) {
				if strings.Contains(row[2], "`"+command+"`") {
					settings[n] = true
				}
			}
		}
		pages := map[string]map[string]bool{"docs/settings.md": settings}
		if command == "run" {
			guide := make(map[string]bool)
			for _, cell := range rows(section(t, "docs/guides/run.md", "Exit statuses")) {
				for _, n := range regexp.MustCompile(`\b\d+\b`).FindAllString(strings.ReplaceAll(cell, "128+N", ""), -1) {
					guide[n] = true
				}
			}
			pages["docs/guides/run.md"] = guide
		}
		for page, has := range pages {
			if !maps.Equal(has, want) {
				t.Errorf("%s has the statuses %v, the help of %s %v", page, sorted(has), command, sorted(want))
			}
		}
	}
}

// The page of each store has the options that its URL takes, and no others.
func TestStoreOptions(t *testing.T) {
	taken := regexp.MustCompile(`\w\.(?:String|Bool|Int|Duration|OneOf)\("([a-z-]+)"`)
	for page, files := range map[string]string{
		"docs/stores/redis.md":     "backends/redislock/*.go",
		"docs/stores/zookeeper.md": "backends/zklock/*.go",
		"docs/stores/etcd.md":      "backends/caslock/etcd/*.go",
		"docs/stores/mysql.md":     "backends/mysqllock/*.go backends/mysqllock/*/*.go backends/sqllock/mysql/*.go backends/sqllock/*.go backends/storeurl/sql.go",
		"docs/stores/postgres.md":  "backends/sqllock/postgres/*.go backends/sqllock/*.go backends/storeurl/sql.go",
	} {
		want := make(map[string]bool)
		for _, m := range taken.FindAllStringSubmatch(sources(t, files+" backends/storeurl/storeurl.go backends/storeurl/tls.go"), -1) {
			want[m[1]] = true
		}
		documented := make(map[string]bool)
		for _, cell := range rows(section(t, page, "Its URL")) {
			for _, m := range regexp.MustCompile("`([a-z-]+)`").FindAllStringSubmatch(cell, -1) {
				documented[m[1]] = true
			}
		}
		if !maps.Equal(documented, want) {
			t.Errorf("%s has the options %v, the code takes %v", page, sorted(documented), sorted(want))
		}
	}
}

// sources are the texts of Go files that are no tests, one behind the other.
func sources(t *testing.T, patterns string) string {
	t.Helper()
	var all strings.Builder
	for pattern := range strings.FieldsSeq(patterns) {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(text)
		}
	}
	return all.String()
}

// The table of metrics has those of a sidecar, each with its type.
func TestMetrics(t *testing.T) {
	documented := make(map[string]string)
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| (counter|gauge|histogram) \\|").FindAllStringSubmatch(section(t, "docs/observing.md", "Metrics"), -1) {
		documented["locksidecar_"+row[1]] = row[2]
	}
	text, err := newPlace(t).run(t, "sh", "-c", `curl -sS --unix-socket "$LOCKSIDECAR_SOCKET" http://locksidecar/metrics`)
	if err != nil {
		t.Fatal(err, text)
	}
	there := map[string]string{
		// Not on the embedded store.
		"locksidecar_store_command_seconds": "histogram",
		"locksidecar_shard_up":              "gauge",
		// Only with --principal unit, or pod.
		"locksidecar_principal_sessions": "gauge",
		"locksidecar_principal_holds":    "gauge",
		// Only with --principal pod.
		"locksidecar_service_account_sessions": "gauge",
		"locksidecar_service_account_holds":    "gauge",
	}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (locksidecar_\w+) (\w+)$`).FindAllStringSubmatch(text, -1) {
		there[m[1]] = m[2]
	}
	if !maps.Equal(documented, there) {
		t.Errorf("docs/observing.md has %v\nthe sidecar has %v", documented, there)
	}
}

// The table of commands has what the stores' code measures.
func TestCommands(t *testing.T) {
	for _, c := range []struct {
		store, files, command string
	}{
		{"Redis", "backends/redislock/*.go", `newScript\("([a-z_]+)"|\bobserve\("([a-z_]+)"`},
		{"ZooKeeper", "backends/zklock/zksession/*.go", `Call\{\s*name: "([a-z_]+)"`},
		{"etcd", "backends/caslock/*.go", `\.(?:do|inTurn)\([\w.]+, "([a-z_]+)"|\.pages\([\w.]+, "([a-z_]+)"|op[A-Z][a-z]+: "([a-z_]+)"`},
		{"MySQL, MariaDB, PostgreSQL", "backends/sqllock/*.go backends/sqllock/*/*.go backends/mysqllock/*/*.go", `\.(?:[dD]o|run)\([\w.]+, "([a-z_]+)"|\.observe\("([a-z_]+)"|\bop[A-Z]\w+: "([a-z]+)"`},
	} {
		t.Run(c.store, func(t *testing.T) {
			measured := make(map[string]bool)
			for _, m := range regexp.MustCompile(c.command).FindAllStringSubmatch(sources(t, c.files), -1) {
				measured[strings.Join(m[1:], "")] = true
			}
			documented := make(map[string]bool)
			row := regexp.MustCompile(`(?m)^\| ` + c.store + ` \| .*$`).FindString(section(t, "docs/observing.md", "Metrics"))
			for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(row, -1) {
				documented[m[1]] = true
			}
			if !maps.Equal(documented, measured) {
				t.Errorf("docs/observing.md has %v, the code measures %v", sorted(documented), sorted(measured))
			}
		})
	}
}

// The table of alarms has the chart's.
func TestAlarms(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "deploy/helm/locksidecar/files/alarms.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var alarms []struct{ Alert string }
	if err := yaml.Unmarshal(text, &alarms); err != nil {
		t.Fatal(err)
	}
	var names, documented []string
	for _, a := range alarms {
		names = append(names, "`"+a.Alert+"`")
	}
	for _, cell := range rows(section(t, "docs/observing.md", "Alarms")) {
		if strings.HasPrefix(cell, "`Locksidecar") {
			documented = append(documented, cell)
		}
	}
	if !slices.Equal(names, documented) {
		t.Errorf("the chart has %v\ndocs/observing.md has %v", names, documented)
	}
}

// All parts of the project have one version.
func TestOneVersion(t *testing.T) {
	found := make(map[string]string)
	for file, pattern := range map[string]string{
		"examples/python/pyproject.toml":      `(?m)^version = "(.*)"`,
		"examples/node/package.json":          `"version": "(.*)"`,
		"examples/java/pom.xml":               `<artifactId>locksidecar-java</artifactId>\s*<version>(.*)-SNAPSHOT</version>`,
		"deploy/helm/locksidecar/Chart.yaml":  `(?m)^version: (.*)$`,
		"deploy/helm/locksidecar/Chart.yaml#": `(?m)^appVersion: (.*)$`,
		"docs/kubernetes.md":                  `\{name: locksidecar, version: ([\d.]+)`,
		"docs/stability.md":                   `The version of all parts is (\d+\.\d+\.\d+)\.`,
	} {
		text, err := os.ReadFile(filepath.Join(root, strings.TrimSuffix(file, "#")))
		if err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(pattern).FindStringSubmatch(string(text))
		if m == nil {
			t.Errorf("%s has no version", file)
			continue
		}
		found[strings.Trim(m[1], `"`)] += file + " "
	}
	if len(found) != 1 {
		t.Errorf("more than one version: %v", found)
	}
}

// Where a page says which Node.js is needed, it is that of package.json.
func TestLeastNode(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "examples/node/package.json"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`"node": ">=([\d.]+)"`).FindStringSubmatch(string(text))
	if m == nil {
		t.Fatal("package.json does not say which Node.js is needed")
	}
	for page, text := range pages(t) {
		for _, n := range regexp.MustCompile(`Node(?:\.js)? ≥ ([\d.]*\d)`).FindAllStringSubmatch(text, -1) {
			if n[1] != m[1] {
				t.Errorf("%s says Node.js %s, package.json %s", page, n[1], m[1])
			}
		}
	}
}
