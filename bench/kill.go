package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/locksidecar/locksidecar/bench/internal/measure"

	"github.com/locksidecar/locksidecar/bench/internal/proc"
	"github.com/locksidecar/locksidecar/bench/internal/report"
	"github.com/locksidecar/locksidecar/bench/internal/sidecar"
	"github.com/locksidecar/locksidecar/client"
)

const (
	killResource = "bench/kill"
	queueTimeout = 10 * time.Second
	queueEvery   = time.Millisecond
)

// kill measures how soon the lock of an app that is killed is granted to who
// waits for it at another sidecar.
func (s *section) kill(ctx context.Context) (err error) {
	near, err := s.sidecar(ctx, "kill-holder")
	if err != nil {
		return err
	}
	defer closeAfter(&err, near.Close)
	far, err := s.sidecar(ctx, "kill-waiter")
	if err != nil {
		return err
	}
	defer closeAfter(&err, far.Close)
	waiter, err := far.Open(ctx)
	if err != nil {
		return err
	}
	defer closeAfter(&err, waiter.Close)

	s.progress("killing %d holders", s.kills)
	var took []time.Duration
	for range s.kills {
		d, err := killOnce(ctx, near, waiter)
		if err != nil {
			return err
		}
		took = append(took, d)
	}
	k := &report.Kill{Repeats: s.kills, Grant: measure.TimesOf(took)}
	s.report.Kill = k
	s.aim(report.AtMost("kill -9 of the holder to the next grant (p99)", "ms", k.Grant.P99/1000, s.plan.killMS))
	return nil
}

func killOnce(ctx context.Context, near *sidecar.Sidecar, waiter *sidecar.App) (took time.Duration, err error) {
	holder, err := proc.Self("hold", near.Socket, killResource)
	if err != nil {
		return 0, err
	}
	defer func() {
		err = errors.Join(err, holder.Kill())
		holder.Wait()
	}()
	if _, err := holder.Line(); err != nil {
		return 0, err
	}
	type outcome struct {
		lock *client.Lock
		at   time.Time
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	granted := make(chan outcome, 1)
	go func() {
		l, err := waiter.Acquire(ctx, killResource)
		granted <- outcome{l, time.Now(), err}
	}()
	err = untilQueued(ctx, waiter, killResource)
	killed := time.Now()
	if err = errors.Join(err, holder.Kill()); err != nil {
		cancel()
		<-granted
		return 0, err
	}
	o := <-granted
	if o.err != nil {
		return 0, fmt.Errorf("wait for the lock of a killed app: %w", o.err)
	}
	return o.at.Sub(killed), o.lock.Release(ctx)
}

// untilQueued returns when the store knows somebody who waits.
func untilQueued(ctx context.Context, app *sidecar.App, resource string) error {
	ctx, cancel := context.WithTimeout(ctx, queueTimeout)
	defer cancel()
	for {
		n, err := app.Waiters(ctx, resource)
		if err != nil || n > 0 {
			return err
		}
		select {
		case <-time.After(queueEvery):
		case <-ctx.Done():
			return fmt.Errorf("wait for a waiter: %w", ctx.Err())
		}
	}
}

// holdForever is the process that is killed: an app that holds a lock.
func holdForever(ctx context.Context, socket, resource string) error {
	app, err := sidecar.OpenApp(ctx, socket)
	if err != nil {
		return err
	}
	if _, err := app.Acquire(ctx, resource); err != nil {
		return err
	}
	fmt.Println("held")
	<-ctx.Done()
	return app.Close()
}
