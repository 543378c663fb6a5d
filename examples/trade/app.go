package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/client"
)

// prefix begins the names of all withdrawals; their numbers follow.
const prefix = "withdrawals/"

// app is a process of the service.
type app struct {
	client  *client.Client
	session *client.Session
	gateway gatewayClient
	ledger  *ledger
	crashes bool // it is killed at two moments
}

// runApp is a process of the service. It ends when it has tried each withdrawal.
// That of the compensation job ends when all are booked.
func runApp(ctx context.Context, role string, o options) (err error) {
	a := &app{gateway: gatewayClient{url: o.gateway}, crashes: role == roleApp}
	if a.ledger, err = openLedger(o.store, o.namespace); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.ledger.db.Close()) }()
	if a.client, err = client.Dial(ctx, ""); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.client.Close()) }()
	if a.session, err = a.client.OpenSession(ctx, client.SessionOptions{Name: role}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.session.Close()) }()
	if role == roleCompensate {
		return a.compensate(ctx, o.withdrawals)
	}
	// What was not started is recorded nowhere, and no compensation finds it. So the app comes back to it: where the
	// store has not answered, and where another process is at it, or was, and has died before it began.
	for todo := rand.Perm(o.withdrawals); len(todo) > 0 && a.session.Err() == nil; { //nolint:gosec // the order matters little
		n := todo[0]
		todo = todo[1:]
		if err := a.withdraw(ctx, n); errors.Is(err, client.ErrStoreUnavailable) || errors.Is(err, client.ErrLockHeld) {
			todo = append(todo, n)
			time.Sleep(time.Duration(20/len(todo)) * time.Millisecond)
		}
	}
	return a.ended()
}

// errSidecar: the sidecar was killed. It is back soon.
var errSidecar = errors.New("the sidecar is gone")

func (a *app) ended() error {
	if a.session.Err() != nil {
		return errSidecar
	}
	return nil
}

// compensate tries again what has failed, and what nobody knows of.
func (a *app) compensate(ctx context.Context, withdrawals int) error {
	for a.session.Err() == nil {
		for o, err := range a.client.Outcomes(ctx, prefix, client.Failed, client.Unknown) {
			if err != nil {
				break // the next time
			}
			var n int
			if _, err := fmt.Sscan(strings.TrimPrefix(o.GetResource(), prefix), &n); err != nil {
				return err
			}
			_ = a.withdraw(ctx, n) // else the next time
		}
		if s, err := a.ledger.sum(ctx); err != nil || s.booked == withdrawals {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return a.ended()
}

// withdraw is an attempt at a withdrawal. What goes wrong in it is the business of a later
// attempt. The error is that of the acquire: there was none.
func (a *app) withdraw(ctx context.Context, n int) error {
	key := fmt.Sprint(prefix, n)
	hold, err := a.session.Acquire(ctx, key, client.AcquireOptions{Wait: client.NoWait, Once: &client.Once{}})
	if err != nil {
		return err // it is done, or another process is at it, or there is no answer
	}
	transfer, err := a.pay(ctx, hold, key, n)
	if errors.Is(err, errRefused) {
		_ = hold.Conclude(ctx, client.Failed, err.Error()) // else it is unknown
		return nil
	}
	crash := func(at int) {
		if a.crashes && hold.Attempt == 1 && n%50 == at {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
	if err == nil {
		crash(11) // it is paid, and not booked
		err = a.ledger.book(ctx, hold, n, transfer)
	}
	if err != nil {
		_ = hold.Release(ctx) // nobody knows: it stays unknown
		return nil
	}
	crash(31)                                          // it is booked, and nobody was told
	_ = hold.Conclude(ctx, client.Succeeded, transfer) // the ledger has recorded it
	return nil
}

// pay pays, unless an attempt before has.
func (a *app) pay(ctx context.Context, hold *client.Lock, key string, n int) (transfer string, err error) {
	if hold.Previous.GetState() == client.Unknown {
		if transfer, err = a.gateway.find(ctx, key, hold.Fence); transfer != "" || err != nil {
			return transfer, err
		}
	}
	return a.gateway.pay(ctx, key, n, hold.Fence)
}
