package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/locksidecar/locksidecar/api/locksidecar/v1"
	"github.com/locksidecar/locksidecar/client"
	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/waitfor"
)

// secondLook is how long after the first look a circle is looked at again.
const secondLook = 250 * time.Millisecond

func newDeadlocks(io streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "deadlocks",
		Short: "Show who waits for each other, and who blocks whom",
		Long: `Deadlocks shows the owners that wait for each other at this moment, through whatever
sidecars: one line for each, with whom it waits for. It reads all locks, and then those of
the deadlocks once more, so that it shows nothing that goes away by itself meanwhile.
An owner is a session and, in it, the owner label of its requests; requests without
one are never part of a deadlock.

With --tree it shows who blocks whom, whether or not that is a deadlock.

` + missingHelp + `

It only looks. Sidecars break deadlocks by themselves, about a second after they arise:
see --deadlock of serve.`,
		Example: `  locksidecar deadlocks
  locksidecar deadlocks --tree
  locksidecar deadlocks -o json | jq '.deadlocks | length'`,
		Args: noArgs,
	}
	f := addClient(cmd, io).orStore(cmd)
	tree := cmd.Flags().Bool("tree", false, "show who blocks whom")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return f.ask(cmd.Context(), func(ctx context.Context, c *client.Client, asJSON bool) error {
			locks, missing, err := waitedFor(ctx, c)
			if err != nil {
				return err
			}
			g := waitfor.New(locks)
			cycles, err := standing(ctx, c, g.Cycles())
			if err != nil {
				return err
			}
			switch {
			case asJSON && *tree:
				err = writeGraph(io.out, deadlocksJSON{Deadlocks: circlesJSON(cycles), Tree: treeJSON(g.Tree()), MissingShards: missing})
			case asJSON:
				err = writeGraph(io.out, deadlocksJSON{Deadlocks: circlesJSON(cycles), MissingShards: missing})
			case *tree:
				err = writeTree(io.out, g.Tree(), len(cycles))
			default:
				err = writeCycles(io.out, cycles)
			}
			return allBut(missing, err)
		})
	}
	return cmd
}

// waitedFor reads all locks for which somebody waits, and tells which shards' are missing.
func waitedFor(ctx context.Context, c *client.Client) (locks []lock.Status, missing []string, err error) {
	for l, err := range c.List(ctx, "") {
		if err = lacking(err, &missing); err != nil {
			return nil, nil, err
		}
		if len(l.GetWaiters()) > 0 {
			locks = append(locks, statusOf(l))
		}
	}
	return locks, missing, nil
}

// standing are the circles that are there at the second look, too.
func standing(ctx context.Context, c *client.Client, cycles []waitfor.Cycle) ([]waitfor.Cycle, error) {
	if len(cycles) == 0 {
		return nil, nil
	}
	select {
	case <-time.After(secondLook):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	get := func(ctx context.Context, r lock.Resource) (lock.Status, error) {
		l, err := c.Get(ctx, string(r))
		if err != nil {
			return lock.Status{}, err
		}
		return statusOf(l), nil
	}
	var left []waitfor.Cycle
	for _, cycle := range cycles {
		stands, err := waitfor.Again(ctx, get, cycle)
		if err != nil {
			return nil, err
		}
		if stands {
			left = append(left, cycle)
		}
	}
	return left, nil
}

func statusOf(l *pb.Lock) lock.Status {
	return lock.Status{Resource: lock.Resource(l.GetResource()), Holders: holdingsOf(l.GetHolders()), Waiters: holdingsOf(l.GetWaiters())}
}

func holdingsOf(list []*pb.Holder) (all []lock.Holding) {
	for _, h := range list {
		mode := lock.Exclusive
		switch h.GetMode() {
		case pb.Mode_SHARED:
			mode = lock.Shared
		case pb.Mode_PERMIT:
			mode = lock.Permits(int(h.GetLimit()))
		}
		all = append(all, lock.Holding{
			ID: lock.HoldID(h.GetLockId()), Mode: mode, Age: h.GetAge().AsDuration(), Sidecar: h.GetSidecar(), Revoked: h.GetRevoked(), Parked: h.GetParked(),
			Kept:  h.GetKeptFor().AsDuration(),
			Owner: lock.Owner{PID: h.GetPid(), UID: h.GetUid(), Principal: h.GetPrincipal(), Ref: h.GetSessionRef(), Session: h.GetSession(), Label: h.GetOwner()},
		})
	}
	return all
}

// writeCycles is one line for each member of each circle.
func writeCycles(w io.Writer, cycles []waitfor.Cycle) error {
	if len(cycles) == 0 {
		_, err := fmt.Fprintln(w, "there is no deadlock")
		return err
	}
	t := newTable(w)
	row(t, "DEADLOCK", "WHO", "WAITS", "FOR", "MODE", "WHICH IS", "LOCK ID")
	for i, c := range cycles {
		for _, e := range c {
			row(t, strconv.Itoa(i+1), printable(waitfor.Name(e.Waiter)), age(e.Waiter.Age), printable(string(e.Resource)), e.Waiter.Mode.String(),
				becauseOf(e), string(e.Waiter.ID))
		}
	}
	return t.Flush()
}

// becauseOf says why an edge is there.
func becauseOf(e waitfor.Edge) string {
	verb := "held " + e.Blocker.Mode.String()
	if e.Queued {
		verb = "asked for before " + e.Blocker.Mode.String()
	}
	return verb + " by " + printable(waitfor.Name(e.Blocker)) + " for " + age(e.Blocker.Age)
}

// writeTree draws who blocks whom.
func writeTree(w io.Writer, roots []*waitfor.Node, deadlocks int) error {
	if len(roots) == 0 {
		_, err := fmt.Fprintln(w, "nobody waits")
		return err
	}
	var b strings.Builder
	for _, n := range roots {
		b.WriteString(printable(waitfor.Name(n.Of)) + "\n")
		drawBranches(&b, n, "")
	}
	if deadlocks > 0 {
		b.WriteString("\nSome of these wait for each other: see locksidecar deadlocks\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func drawBranches(b *strings.Builder, n *waitfor.Node, indent string) {
	for i, br := range n.Blocks {
		line, below := "├─ ", "│  "
		if i == len(n.Blocks)-1 {
			line, below = "└─ ", "   "
		}
		verb := "held"
		if br.Queued {
			verb = "asked for before"
		}
		fmt.Fprintf(b, "%s%s%s, %s %s for %s: %s waits %s, %s", indent, line, printable(string(br.Resource)), verb, br.Blocker.Mode, age(br.Blocker.Age),
			printable(waitfor.Name(br.Waiter)), age(br.Waiter.Age), br.Waiter.Mode)
		if br.Others > 0 {
			fmt.Fprintf(b, ", also for %d more", br.Others)
		}
		if br.Node.Again {
			b.WriteString(" (see above for whom it blocks)")
		}
		b.WriteByte('\n')
		drawBranches(b, br.Node, indent+below)
	}
}

// What deadlocks -o json prints. Names are those of the API.
type (
	deadlocksJSON struct {
		Deadlocks [][]edgeJSON `json:"deadlocks"`
		Tree      []nodeJSON   `json:"tree,omitzero"` // with --tree

		MissingShards []string `json:"missingShards,omitempty"` // that did not answer
	}
	edgeJSON struct {
		Resource string    `json:"resource"`
		Waiter   partyJSON `json:"waiter"`
		Blocker  partyJSON `json:"blocker"`
		Queued   bool      `json:"queued"` // the blocker waits as well, in front of the waiter
	}
	nodeJSON struct {
		Of     partyJSON    `json:"of"`
		Again  bool         `json:"again"` // what it blocks stands elsewhere in the tree
		Blocks []branchJSON `json:"blocks"`
	}
	branchJSON struct {
		edgeJSON

		Others int      `json:"others"` // that are in the waiter's way as well
		Node   nodeJSON `json:"node"`
	}
	partyJSON struct {
		LockID     string `json:"lockId"`
		Mode       string `json:"mode"`
		Age        string `json:"age"`
		Sidecar    string `json:"sidecar"`
		PID        int32  `json:"pid"`
		UID        uint32 `json:"uid"`
		Principal  string `json:"principal"`
		Session    string `json:"session"`
		SessionRef string `json:"sessionRef"`
		Owner      string `json:"owner"`
	}
)

func circlesJSON(cycles []waitfor.Cycle) [][]edgeJSON {
	all := make([][]edgeJSON, 0, len(cycles))
	for _, c := range cycles {
		var edges []edgeJSON
		for _, e := range c {
			edges = append(edges, edgeOf(e))
		}
		all = append(all, edges)
	}
	return all
}

func edgeOf(e waitfor.Edge) edgeJSON {
	return edgeJSON{Resource: string(e.Resource), Waiter: partyOf(e.Waiter), Blocker: partyOf(e.Blocker), Queued: e.Queued}
}

func partyOf(h lock.Holding) partyJSON {
	return partyJSON{
		LockID: string(h.ID), Mode: h.Mode.String(), Age: strconv.FormatFloat(h.Age.Seconds(), 'f', 3, 64) + "s", Sidecar: h.Sidecar,
		PID: h.Owner.PID, UID: h.Owner.UID, Principal: h.Owner.Principal, Session: h.Owner.Session, SessionRef: h.Owner.Ref, Owner: h.Owner.Label,
	}
}

func treeJSON(nodes []*waitfor.Node) []nodeJSON {
	all := []nodeJSON{}
	for _, n := range nodes {
		all = append(all, nodeOf(n))
	}
	return all
}

func nodeOf(n *waitfor.Node) nodeJSON {
	j := nodeJSON{Of: partyOf(n.Of), Again: n.Again, Blocks: []branchJSON{}}
	for _, b := range n.Blocks {
		j.Blocks = append(j.Blocks, branchJSON{edgeJSON: edgeOf(b.Edge), Others: b.Others, Node: nodeOf(b.Node)})
	}
	return j
}

func writeGraph(w io.Writer, d deadlocksJSON) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(d)
}

// deadlockModes are the values of --deadlock.
var deadlockModes = []string{"break", "report", "off"}

// deadlockFlag says what is to be done about deadlocks. Its number is a session.DeadlockMode.
type deadlockFlag uint8

func (d *deadlockFlag) String() string { return deadlockModes[*d] }
func (*deadlockFlag) Type() string     { return "mode" }

func (d *deadlockFlag) Set(s string) error {
	for i, name := range deadlockModes {
		if name == s {
			*d = deadlockFlag(i)
			return nil
		}
	}
	return errors.New("must be " + strings.Join(deadlockModes[:2], ", ") + " or " + deadlockModes[2])
}
