package client_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/locksidecar/locksidecar/backends/embedded"
	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/localapi"
	"github.com/locksidecar/locksidecar/session"
)

// sidecarForExample starts a sidecar where client.Dial looks for one.
func sidecarForExample() (stop func()) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	dir, err := os.MkdirTemp("", "lsc")
	must(err)
	store := embedded.New()
	m, err := session.New(session.Options{Backend: store, Sidecar: "example"})
	must(err)
	socket := filepath.Join(dir, "s")
	before := os.Getenv("LOCKSIDECAR_SOCKET")
	must(os.Setenv("LOCKSIDECAR_SOCKET", socket))
	api := localapi.New(localapi.Options{Manager: m, Socket: socket, Version: "v0"})
	serving, endServing := context.WithCancel(context.Background())
	managing, endManaging := context.WithCancel(context.Background())
	served, managed := make(chan error, 1), make(chan error, 1)
	go func() { served <- api.Run(serving) }()
	go func() { managed <- m.Run(managing) }()
	<-api.Listening()
	return func() {
		endServing()
		must(<-served)
		endManaging()
		must(<-managed)
		must(store.Close())
		must(os.Setenv("LOCKSIDECAR_SOCKET", before))
		must(os.RemoveAll(dir))
	}
}

func Example() {
	defer sidecarForExample()()
	ctx := context.Background()

	c, err := client.Dial(ctx, "") // $LOCKSIDECAR_SOCKET, or the default
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = c.Close() }()
	s, err := c.OpenSession(ctx, client.SessionOptions{Name: "billing"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = s.Close() }() // releases whatever is left

	l, err := s.Acquire(ctx, "orders/42", client.AcquireOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("write this with a fence above 0:", l.Fence > 0)
	fmt.Println(l.Release(ctx))
	// Output:
	// write this with a fence above 0: true
	// <nil>
}

// A try does not wait: the error says who has the lock.
func ExampleSession_Acquire_try() {
	defer sidecarForExample()()
	ctx := context.Background()
	c, err := client.Dial(ctx, "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = c.Close() }()
	s, err := c.OpenSession(ctx, client.SessionOptions{Name: "billing"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = s.Close() }()
	if _, err := s.Acquire(ctx, "orders/42", client.AcquireOptions{}); err != nil {
		fmt.Println(err)
		return
	}

	_, err = s.Acquire(ctx, "orders/42", client.AcquireOptions{Wait: client.NoWait}) // not reentrant unless asked
	var said *client.Error
	if errors.Is(err, client.ErrLockHeld) && errors.As(err, &said) {
		fmt.Println("held by session", said.Metadata["holder_session"])
	}
	// Output:
	// held by session billing
}

// Lost is closed when the lock is lost, for whatever reason; Err says why.
func ExampleLock_Lost() {
	defer sidecarForExample()()
	ctx := context.Background()
	c, err := client.Dial(ctx, "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = c.Close() }()
	s, err := c.OpenSession(ctx, client.SessionOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = s.Close() }()
	l, err := s.Acquire(ctx, "report", client.AcquireOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := c.ForceRelease(ctx, "report", "", 0); err != nil { // as an administrator may
		fmt.Println(err)
		return
	}

	finished := make(chan struct{}) // closed when the work is done, which never happens here
	select {
	case <-finished:
	case <-l.Lost(): // stop the work at once
		fmt.Println(errors.Is(l.Err(), client.ErrLockLost))
	}
	// The release tells the sidecar that the loss was seen: it need not keep others out any longer.
	fmt.Println(errors.Is(l.Release(ctx), client.ErrLockLost))
	// Output:
	// true
	// true
}
