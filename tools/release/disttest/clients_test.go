package disttest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/locksidecar/locksidecar/tools/release/pyenv"
)

const pythonApp = `
import sys
import locksidecar

with locksidecar.lock("orders/42") as held:
    print("held", held.fence, flush=True)
    sys.stdin.read()
    held.check()
`

func TestPython(t *testing.T) {
	wheel, source := artifact(t, "locksidecar-%s-py3-none-any.whl"), artifact(t, "locksidecar-%s.tar.gz")
	t.Run("Check", func(t *testing.T) {
		python, err := pyenv.Interpreter(t.Context(), "../requirements.txt")
		if err != nil {
			t.Fatal(err)
		}
		out := run(t, "", python, "-m", "twine", "check", "--strict", wheel, source)
		if strings.Count(out, "PASSED") != 2 {
			t.Error(out)
		}
	})
	for name, archive := range map[string]string{"Wheel": wheel, "Source": source} {
		t.Run(name, func(t *testing.T) {
			dir := files(t, map[string]string{"app.py": pythonApp})
			run(t, dir, "python3", "-m", "venv", "venv")
			python := filepath.Join(dir, "venv", "bin", "python")
			install := []string{python, "-m", "pip", "install", "-q", "--disable-pip-version-check"}
			if name == "Wheel" {
				install = append(install, "--no-index")
			}
			run(t, dir, append(install, archive)...)
			got := run(t, dir, python, "-c", `from importlib.metadata import version, files; print(version("locksidecar")); print(any(f.name == "py.typed" for f in files("locksidecar")))`)
			if got != version+"\nTrue\n" {
				t.Errorf("installed is %q", got)
			}
			holds(t, dir, python, "app.py")
		})
	}
}

const nodeApp = `
const sidecar = new LockSidecar({ name: 'app' });
sidecar.hold('orders/42', {}, async (lock) => {
  console.log('held', String(lock.fence));
  for await (const _ of process.stdin);
  lock.check();
}).then(() => sidecar.close());
`

func TestNode(t *testing.T) {
	archive := artifact(t, "locksidecar-npm-%s.tgz")
	t.Run("Publint", func(t *testing.T) {
		run(t, t.TempDir(), "npm", "exec", "--yes", "--package=publint@0.3.25", "--", "publint", "run", archive, "--strict")
	})
	t.Run("Types", func(t *testing.T) {
		run(t, t.TempDir(), "npm", "exec", "--yes", "--package=@arethetypeswrong/cli@0.18.5", "--", "attw", archive)
	})
	dir := files(t, map[string]string{
		"package.json": `{"name": "app", "private": true}`,
		"app.mjs":      "import { LockSidecar } from 'locksidecar';\n" + nodeApp,
		"app.cjs":      "const { LockSidecar } = require('locksidecar');\n" + nodeApp,
	})
	run(t, dir, "npm", "install", "--silent", "--no-audit", "--no-fund", "--offline", archive)
	for _, app := range []string{"app.mjs", "app.cjs"} {
		t.Run(app, func(t *testing.T) { holds(t, dir, "node", app) })
	}
}

const javaPom = `<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>example</groupId>
  <artifactId>app</artifactId>
  <version>1</version>
  <properties>
    <maven.compiler.source>17</maven.compiler.source>
    <maven.compiler.target>17</maven.compiler.target>
    <project.build.sourceEncoding>UTF-8</project.build.sourceEncoding>
  </properties>
  <repositories>
    <repository><id>bundle</id><url>file://BUNDLE</url></repository>
  </repositories>
  <dependencies>
    <dependency>
      <groupId>io.github.locksidecar</groupId>
      <artifactId>locksidecar-client</artifactId>
      <version>VERSION</version>
    </dependency>
  </dependencies>
</project>
`

const javaApp = `
import io.github.locksidecar.Hold;
import io.github.locksidecar.LockSidecar;

public class App {
  public static void main(String[] args) throws Exception {
    try (LockSidecar sidecar = LockSidecar.connect(); Hold hold = sidecar.lock("orders/42").acquire()) {
      System.out.println("held " + hold.fence());
      System.in.readAllBytes();
      hold.check();
    }
  }
}
`

func TestJava(t *testing.T) {
	name := artifact(t, "locksidecar-maven-%s.zip")
	content := map[string]string{}
	for file, text := range unpacked(t, name, read(t, name)) {
		content[file] = string(text)
	}
	bundle := files(t, content)
	dir := files(t, map[string]string{
		"pom.xml":                strings.NewReplacer("BUNDLE", bundle, "VERSION", version).Replace(javaPom),
		"src/main/java/App.java": javaApp,
	})
	// A repository of its own: what is tested must not be found by other builds of this user.
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	local := filepath.Join(cache, "locksidecar-release", "maven")
	if err := os.RemoveAll(filepath.Join(local, "io", "github", "locksidecar")); err != nil {
		t.Fatal(err)
	}
	run(t, dir, "mvn", "--batch-mode", "--no-transfer-progress", "--quiet", "-Dmaven.repo.local="+local,
		"compile", "dependency:copy-dependencies", "-DoutputDirectory=target/lib")
	holds(t, dir, "java", "-cp", "target/classes:target/lib/*", "App")
}

const rustManifest = `[package]
name = "app"
version = "0.0.0"
edition = "2021"

[dependencies]
locksidecar = { path = "locksidecar-VERSION" }
`

const rustApp = `
use std::io::Read;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let held = locksidecar::Client::new().lock("orders/42").acquire()?;
    println!("held {}", held.fence());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    held.check()?;
    held.release()?;
    Ok(())
}
`

func TestRust(t *testing.T) {
	dir := files(t, map[string]string{
		"Cargo.toml":  strings.ReplaceAll(rustManifest, "VERSION", version),
		"src/main.rs": rustApp,
	})
	run(t, dir, "tar", "-xzf", artifact(t, "locksidecar-%s.crate"))
	license, err := os.ReadFile(filepath.Join(dir, "locksidecar-"+version, "LICENSE"))
	if err != nil || !bytes.Equal(license, read(t, filepath.Join(repository, "LICENSE"))) {
		t.Errorf("the crate has no LICENSE: %v", err)
	}
	run(t, dir, "cargo", "build", "--quiet", "--offline")
	holds(t, dir, filepath.Join(dir, "target", "debug", "app"))
}
