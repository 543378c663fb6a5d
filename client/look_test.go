package client_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/locksidecar/locksidecar/client"
)

// TestHungUpWithoutAWord: a look is asked again where the sidecar hangs up, and a forced
// release is not: it may have been done.
func TestHungUpWithoutAWord(t *testing.T) {
	dir, err := os.MkdirTemp("", "lsl")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	var asked, forced atomic.Int32
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			switch line, _ := bufio.NewReader(c).ReadString('\n'); {
			case strings.HasPrefix(line, "GET"):
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
			case strings.Contains(line, "forceRelease"):
				forced.Add(1)
			case asked.Add(1) > 2:
				_, _ = io.WriteString(c, `{"requestId":"1","info":{"sidecar":"me"}}`+"\n")
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-served })
	c, err := client.Dial(t.Context(), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if i, err := c.Info(t.Context()); err != nil || i.GetSidecar() != "me" || asked.Load() != 3 {
		t.Errorf("%v %v, asked %d times", i, err, asked.Load())
	}
	if _, err := c.ForceRelease(t.Context(), "r", "", 0); !errors.Is(err, client.ErrNoSidecar) || forced.Load() != 1 {
		t.Errorf("%v, asked %d times", err, forced.Load())
	}
}
