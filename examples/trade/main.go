// The program trade is the service that the guide "Done once" begins with: customers withdraw
// money, and the payment gateway does not always answer.
//
//	trade --store mysql://root@127.0.0.1:3306/shop [--withdrawals 1000]
//
// Three processes are asked for each withdrawal, all three of them, and a compensation job
// repeats what has failed and what nobody knows of. The gateway pays as often as it is asked to. The
// processes and their sidecars are killed again and again, at random, and when a withdrawal is paid and
// not booked. In the end trade compares the gateway with the ledger. Its status is 0 if each
// withdrawal was paid once and booked once.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/examples/stage"
)

// What a process of this program is, as its environment says.
const (
	roleVariable   = "TRADE_ROLE"
	roleApp        = "app"
	roleCompensate = "compensation"
)

// roles are the processes of the service. Each sidecar has two of them.
var roles = []string{roleApp, roleApp, roleApp, roleCompensate}

const (
	sidecars        = 2
	killAppsEvery   = 400 * time.Millisecond
	killSidecarWith = 3 // each so many-th kill is a sidecar's
)

type options struct {
	store, namespace, gateway string
	withdrawals               int
	limit                     time.Duration
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	var o options
	flag.StringVar(&o.store, "store", "", "URL of the `store`, MySQL or MariaDB; the ledger is in the same database")
	flag.IntVar(&o.withdrawals, "withdrawals", 1000, "how many there are")
	flag.DurationVar(&o.limit, "limit", 10*time.Minute, "give up after this time")
	flag.StringVar(&o.namespace, "namespace", "trade"+strings.ToLower(rand.Text()[:12]), "keeps this run apart from others")
	flag.StringVar(&o.gateway, "gateway", "", "of the processes of the service")
	flag.Parse()
	var err error
	if role := os.Getenv(roleVariable); role != "" {
		err = runApp(ctx, role, o)
	} else {
		err = trade(ctx, o)
	}
	stop()
	if err != nil {
		if !errors.Is(err, errSidecar) {
			fmt.Fprintf(os.Stderr, "%s: %v\n", cmp.Or(os.Getenv(roleVariable), "trade"), err)
		}
		os.Exit(1)
	}
}

// service is all that runs.
type service struct {
	options
	stage    *stage.Stage
	gateway  *gateway
	ledger   *ledger
	sidecars []*stage.Process
	apps     []*stage.Process // by role; nil: it has done its work
	began    time.Time

	appsKilled, sidecarsKilled int
}

func trade(ctx context.Context, o options) (err error) {
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	s := &service{options: o, began: time.Now(), sidecars: make([]*stage.Process, sidecars), apps: make([]*stage.Process, len(roles))}
	if s.stage, err = stage.Open(ctx, o.store, o.namespace); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stage.Close()) }()
	if s.ledger, err = openLedger(o.store, o.namespace); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.ledger.db.Close()) }()
	if err := s.ledger.build(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.ledger.drop(context.WithoutCancel(ctx))) }()
	if s.gateway, err = openGateway(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.gateway.Close()) }()
	s.options.gateway = s.gateway.url
	defer s.end()
	for i := range s.sidecars {
		if s.sidecars[i], err = s.stage.Sidecar(sidecar(i)); err != nil {
			return err
		}
	}
	for i := range s.apps {
		if err := s.start(i); err != nil {
			return err
		}
	}
	if err := s.watch(ctx); err != nil {
		return err
	}
	return s.verdict(ctx)
}

func sidecar(i int) string { return fmt.Sprintf("node-%d", i%sidecars+1) }

// start starts a process of the service.
func (s *service) start(i int) (err error) {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	s.apps[i], err = s.stage.Start([]string{roleVariable + "=" + roles[i], "LOCKSIDECAR_SOCKET=" + s.stage.Socket(sidecar(i))}, self,
		"-store", s.store, "-namespace", s.namespace, "-withdrawals", fmt.Sprint(s.withdrawals), "-gateway", s.options.gateway)
	return err
}

func (s *service) end() {
	for _, p := range s.apps {
		if p != nil {
			p.Kill()
		}
	}
	for _, p := range s.sidecars {
		if p != nil {
			p.Stop()
		}
	}
}

// watch kills what runs, and starts it again, until every process has done its work.
func (s *service) watch(ctx context.Context) error {
	kills, most := 0, s.withdrawals/20
	nextKill, told := time.Now().Add(killAppsEvery), 0
	for left := len(s.apps); left > 0; {
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
		left = 0
		for i, p := range s.apps {
			switch {
			case p == nil:
				continue
			case !p.Ended():
			case p.Status() == 0:
				s.apps[i] = nil
				continue
			default: // its sidecar was killed, or it was
				if p.Status() < 0 {
					s.appsKilled++
				}
				if err := s.start(i); err != nil {
					return err
				}
			}
			left++
		}
		if kills < most && time.Now().After(nextKill) {
			if err := s.kill(kills); err != nil {
				return err
			}
			kills++
			nextKill = time.Now().Add(killAppsEvery)
		}
		if quarter := s.withdrawals / 4; quarter > 0 {
			if sum := s.gateway.sum(); sum.paid/quarter > told {
				told = sum.paid / quarter
				fmt.Printf("[%5.1fs] %4d withdrawals paid; %d processes and %d sidecars killed\n", time.Since(s.began).Seconds(), sum.paid, s.appsKilled, s.sidecarsKilled)
			}
		}
	}
	return nil
}

// kill kills a sidecar first and then now and again, else a process of the service.
func (s *service) kill(n int) (err error) {
	if n%killSidecarWith == 0 {
		i := n / killSidecarWith % sidecars
		s.sidecars[i].Kill()
		s.sidecarsKilled++
		s.sidecars[i], err = s.stage.Sidecar(sidecar(i))
		return err
	}
	if p := s.apps[mathrand.IntN(len(s.apps))]; p != nil { //nolint:gosec // which one matters little
		p.Kill()
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// verdict says what was proven.
func (s *service) verdict(ctx context.Context) error {
	paid := s.gateway.sum()
	booked, err := s.ledger.sum(ctx)
	if err != nil {
		return err
	}
	open, err := s.open(ctx)
	if err != nil {
		return err
	}
	want := 0
	for n := range s.withdrawals {
		want += cents(n)
	}
	if paid.paid != s.withdrawals || paid.twice != 0 || paid.cents != want ||
		booked.booked != s.withdrawals || booked.twice != 0 || booked.cents != want || booked.balance != deposit-want || open != 0 {
		return fmt.Errorf("%d withdrawals of %s in all: the gateway has %+v, the ledger has %+v, and %d outcomes are not SUCCEEDED",
			s.withdrawals, euros(want), paid, booked, open)
	}
	fmt.Printf("\nThe gateway left %d requests without an answer, of which it had paid %d, and %d processes and %d sidecars were killed at work.\n"+
		"Proven: each of the %d withdrawals was paid once and booked once, and the gateway's %s are what the account has less, to the cent.\n",
		paid.silent, paid.silentY, s.appsKilled, s.sidecarsKilled, s.withdrawals, euros(want))
	return nil
}

// open is how many outcomes are not SUCCEEDED.
func (s *service) open(ctx context.Context) (n int, err error) {
	c, err := client.Dial(ctx, s.stage.Socket(sidecar(0)))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for _, err := range c.Outcomes(ctx, prefix, client.Failed, client.Unknown) {
		if err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}

func euros(cents int) string { return fmt.Sprintf("%d.%02d €", cents/100, cents%100) }
