package main

import (
	"fmt"
	"net"
	"time"
)

// What a service of Type=notify tells systemd, see sd_notify(3).
const (
	notifyEnv      = "NOTIFY_SOCKET"
	notifyReady    = "READY=1" // apps can connect
	notifyStopping = "STOPPING=1"
	notifyLimit    = time.Second
)

// notify sends a state to the socket of whoever has started this process. An empty path:
// nobody wants to know.
func notify(socket, state string) error {
	if socket == "" {
		return nil
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"}) // a leading @ is an abstract one
	if err != nil {
		return fmt.Errorf("open %s: %w", notifyEnv, err)
	}
	defer func() { _ = c.Close() }()
	if err := c.SetWriteDeadline(time.Now().Add(notifyLimit)); err != nil { // systemd may be busy
		return fmt.Errorf("send %s: %w", state, err)
	}
	if _, err := c.Write([]byte(state)); err != nil {
		return fmt.Errorf("send %s: %w", state, err)
	}
	return nil
}
