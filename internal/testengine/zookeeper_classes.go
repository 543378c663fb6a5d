package testengine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// archiveTimeout is what the archive of classes may take, on a busy machine.
const archiveTimeout = time.Minute

// zooKeeperClasses is the option by which Java takes the classes of ZooKeeper from an archive, as it does with its own: they are
// read, verified and linked once, and not in each server, for which that is a quarter of the processor time of its start. The
// archive is among the user's caches, one for each Java and class path. Where it cannot be made, servers start without it.
// So they do where Java finds that it does not fit. Programs that measure have none.
func zooKeeperClasses(ctx context.Context, m machine, classes string) []string {
	if _, here := m.(*local); !here || onDisk {
		return nil // a container has nobody's caches
	}
	ctx, cancel := context.WithTimeout(ctx, archiveTimeout)
	defer cancel()
	file, err := archiveOfClasses(ctx, m, classes)
	if err != nil {
		return nil
	}
	return []string{"-XX:SharedArchiveFile=" + file}
}

// archiveOfClasses is the absolute path of the archive, which it makes where it is not there. Several test processes may
// do that at a time: each makes its own, which gets its name when it is complete.
func archiveOfClasses(ctx context.Context, m machine, classes string) (string, error) {
	out, err := m.sh(ctx, fmt.Sprintf(`set -e
cache=%s classes=%s
key=$({ java -version 2>&1; readlink -f "$(command -v java)"; IFS=:; ls -lL $classes; } | cksum | tr ' ' -)
file=$cache/zookeeper-$key.jsa
if [ -e "$file" ]; then
	echo "$file"
else
	mkdir -p "$cache"
	find "$cache" -maxdepth 1 \( -name 'zookeeper-new.*' -mmin +10 -o -name 'zookeeper-*.jsa' -mtime +30 \) -exec rm -rf {} +
	new=$(mktemp -d "$cache/zookeeper-new.XXXXXX")
	printf '%%s\n' "$file" "$new"
fi`, quote(m.cache()), quote(classes)))
	if err != nil {
		return "", err
	}
	file, dir, missing := strings.Cut(strings.TrimSpace(out), "\n")
	if !missing {
		return file, nil
	}
	return file, errors.Join(archiveClasses(ctx, m, classes, dir+"/classes.jsa", file), remove(ctx, m, dir))
}

// archiveClasses has a server of its own write the classes that it has when it ends.
func archiveClasses(ctx context.Context, m machine, classes, part, file string) error {
	ports, err := freePorts(ctx, 1)
	if err != nil {
		return err
	}
	n := &node{m: m, dir: "zookeeper-classes", port: ports[0]}
	z := zooKeeperServer{}
	if z.dir, err = writeZooKeeper(ctx, n, 1, nil); err != nil {
		return err
	}
	args := zooKeeperArgs(classes, "-XX:ArchiveClassesAtExit="+part)
	n.program, n.argv = z, func(context.Context) ([]string, error) { return args, nil }
	if err := n.launch(ctx); err != nil {
		return errors.Join(err, n.Crash(context.WithoutCancel(ctx), DropData))
	}
	err = n.proc.signal(ctx, syscall.SIGTERM)
	if err == nil {
		err = poll(ctx, func() error {
			switch alive, err := n.proc.alive(ctx); {
			case err != nil:
				return err
			case alive:
				return errors.New("it has not ended")
			}
			return nil
		})
	}
	if err != nil {
		return errors.Join(err, n.Crash(context.WithoutCancel(ctx), DropData))
	}
	_, err = m.sh(ctx, fmt.Sprintf("mv -f %s %s && rm -rf %s", quote(part), quote(file), quote(n.dir)))
	return err
}

func remove(ctx context.Context, m machine, dir string) error {
	_, err := m.sh(context.WithoutCancel(ctx), "rm -rf "+quote(dir))
	return err
}
