package examples

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The package as npm would publish it: what it exports, and that its types say what `import`
// and `require` give in each way in which TypeScript looks for them.
func TestNodePackage(t *testing.T) {
	t.Parallel()
	long(t)
	needs(t, "nodejs npm", "node", "npm")
	out, ok := suite(t, nodeTools(t), environment(), "npm", "run", "--silent", "check-package")
	if !ok {
		t.Errorf("it cannot be published so:\n%s", out)
	}
}

// nodeTools is a copy of the package with its devDependencies, which are in the user's cache: one
// set for each package.json.
func nodeTools(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), suiteLimit)
	defer cancel()
	project, err := os.ReadFile("node/package.json")
	if err != nil {
		t.Fatal(err)
	}
	tools, unlock, err := cached(ctx, "node", project)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	done := filepath.Join(tools, "complete")
	if _, err := os.Stat(done); err != nil {
		if err := os.MkdirAll(tools, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tools, "package.json"), project, 0o600); err != nil {
			t.Fatal(err)
		}
		install := exec.CommandContext(ctx, "npm", "install", "--no-audit", "--no-fund", "--no-package-lock")
		install.Dir = tools
		if out, err := install.CombinedOutput(); err != nil {
			t.Fatalf("install the devDependencies: %v\n%s", err, out)
		}
		if err := os.WriteFile(done, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("node")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(tools, "node_modules"), filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	return dir
}
