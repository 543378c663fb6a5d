package session

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/locksidecar/locksidecar/lock"
	"github.com/locksidecar/locksidecar/session/ledger"
)

// Detached is a hold that lives by its own time in the store. Who has the Handle has it.
type Detached struct {
	Handle   string
	Resource string
	Mode     lock.Mode
	Fence    lock.Fence
	Until    time.Duration // on Options.Clock: the store keeps others out at least up to then
}

// A handle is handlePrefix and, in base64, the mode, the secret and the name of the resource in the store.
const (
	handlePrefix = "lsh1_"
	modeBytes    = 2
	secretBytes  = 26
)

func formatHandle(m lock.Mode, secret lock.Secret, r lock.Resource) string {
	b := binary.BigEndian.AppendUint16(nil, uint16(m))
	b = append(append(b, secret...), r...)
	return handlePrefix + base64.RawURLEncoding.EncodeToString(b)
}

// parseHandle reads a handle. Whether there is a hold of it only the store knows.
func parseHandle(handle string) (m lock.Mode, secret lock.Secret, r lock.Resource, err error) {
	text, found := strings.CutPrefix(handle, handlePrefix)
	if found && len(text) <= base64.RawURLEncoding.EncodedLen(modeBytes+secretBytes+lock.MaxResourceBytes) {
		if b, err := base64.RawURLEncoding.DecodeString(text); err == nil && len(b) > modeBytes+secretBytes {
			m, b = lock.Mode(binary.BigEndian.Uint16(b)), b[modeBytes:]
			if m.Valid() {
				return m, lock.Secret(b[:secretBytes]), lock.Resource(b[secretBytes:]), nil
			}
		}
	}
	return 0, "", "", invalid("handle", "is not one of a detached hold")
}

// attaches reads the handle of a request, if it has one, and puts its resource and mode into it.
func (r *AcquireRequest) attaches(sp *Space) (lock.Secret, error) {
	if r.Handle == "" {
		return "", nil
	}
	m, secret, res, err := parseHandle(r.Handle)
	if err != nil {
		return "", err
	}
	name, err := sp.handed(res)
	switch {
	case err != nil:
		return "", err
	case r.Resource != "" || len(r.Resources) > 0 || r.Mode != lock.Exclusive || r.Reentrant || r.Once != nil || r.MinHold != 0 || r.Detachable:
		return "", invalid("handle", "says what is attached: it needs no resource, no mode, and none of reentrant, once, min_hold, detachable")
	}
	r.Resource, r.Mode = name, m
	return secret, nil
}

// Detach takes a hold off the session: from now on it lives for ttl in the store, whatever becomes
// of the session and of the sidecar. Who has the handle may attach it to a session, by
// AcquireRequest.Handle, at whatever sidecar of the store, and extend and release it. The fence stays.
// A hold that was attached can be detached again; the handle before is worth nothing then.
//
//	*lock.InvalidError: ttl is refused, the hold was not acquired with Detachable, or the
//	  store has not confirmed its Downgrade.
//	*LimitError: the user has detached too many holds here, or those of its service account or its space have, or too much is in flight.
//	lock.ErrUnavailable: the store did not answer. The hold is over; it is released in the background.
//	*LostError, lock.ErrNotHolder, ErrSessionClosed: as for Release.
func (s *Session) Detach(ctx context.Context, id lock.HoldID, ttl time.Duration) (Detached, error) {
	if err := lock.CheckDetach(ttl); err != nil {
		return Detached{}, err
	}
	land, err := fly(s)
	if err != nil {
		return Detached{}, err
	}
	defer land()
	secret := lock.NewSecret()
	key := secret.Key()
	s.enter()
	was := s.ledger.HandleOf(id)
	s.exit()
	if err := s.space.m.detaches(ctx, s, key, was); err != nil {
		return Detached{}, err
	}
	s.enter()
	h, err := s.ledger.Detach(id, ledger.Exit{Key: key, TTL: ttl})
	if err != nil {
		s.exit()
		s.space.m.loose.drop(key)
		return Detached{}, err
	}
	c := &call{values: ctx, from: s}
	s.ledger.Releasing(h, c)
	d := Detached{
		Handle: formatHandle(h.Mode(), secret, h.Resource()), Resource: h.Name(), Mode: h.Mode(), Fence: h.Fence(),
		Until: s.now + ttl,
	}
	s.exit()
	said := release(c, s, h) //nolint:contextcheck,nolintlint // it has the values of ctx, and ends by the ledger alone
	c.end()
	s.mu.Lock()
	err = s.ledger.Released(h, []LostReason{said})
	s.exit()
	var lost *LostError
	switch {
	case errors.As(err, &lost): // there is no event: the answer says it
		s.space.m.o.Observer.HoldLost(lost.Lost.Reason)
	case said == ledger.Unknown:
		err = fmt.Errorf("detach lock: %w", errSilent)
	}
	if err != nil {
		s.space.m.loose.drop(key)
		return Detached{}, err
	}
	s.space.m.loose.set(key, h.Resource(), d.Fence, d.Until)
	s.space.m.loose.drop(was)
	return d, nil
}

// leave asks the store to end a hold, or to detach it.
func (g *generation) leave(ctx context.Context, h *ledger.Hold) error {
	if x := h.Exit(); x != nil {
		return detach(ctx, g.lease, h.Resource(), h.ID(), *x)
	}
	return g.lease.Release(ctx, h.Resource(), h.ID())
}

func detach(ctx context.Context, l lock.Lease, r lock.Resource, id lock.HoldID, x ledger.Exit) error {
	d, may := l.(lock.Detacher)
	if !may { // the lease before could, or there would be no such hold
		return lock.ErrNotHolder
	}
	return d.Detach(ctx, r, id, x.Key, x.TTL)
}

// ExtendHandle makes the time of a detached hold end ttl from now, attached or not. An app to
// which it is attached through this sidecar has it for longer, too. One elsewhere
// keeps the end that it was told; what it then loses is detached again.
//
//	lock.ErrNoHandle: there is no hold of it (any more).
//	lock.ErrUnavailable: the outcome is unknown. Calling it again is safe.
//	lock.ErrUnsupported: the store has no detached holds.
//	*lock.InvalidError: a field is refused.
func (sp *Space) ExtendHandle(ctx context.Context, handle string, ttl time.Duration) (Detached, error) {
	if err := lock.CheckDetach(ttl); err != nil {
		return Detached{}, err
	}
	return sp.setHandle(ctx, handle, ttl)
}

// ReleaseHandle ends a detached hold. An app to which it is attached is told lost, by
// TakenOver. Errors as for ExtendHandle.
func (sp *Space) ReleaseHandle(ctx context.Context, handle string) error {
	_, err := sp.setHandle(ctx, handle, 0)
	return err
}

func (sp *Space) setHandle(ctx context.Context, handle string, ttl time.Duration) (Detached, error) {
	mode, secret, res, err := parseHandle(handle)
	if err != nil {
		return Detached{}, err
	}
	name, err := sp.handed(res)
	if err == nil {
		res, err = sp.inStore(name) // whether such a name can be
	}
	switch {
	case err != nil:
		return Detached{}, err
	case sp.m.handles == nil:
		return Detached{}, lock.NoHandles()
	}
	lock.Blocking(ctx) // a Backend does not say so
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	until := sp.m.o.Clock() + ttl
	d, err := sp.m.handles.SetHandle(ctx, res, secret.Key(), ttl)
	for tries := 0; errors.Is(err, lock.ErrUnavailable) && pause(ctx, backoff(tries, minPause, maxPause)); tries++ {
		until = sp.m.o.Clock() + ttl
		var again lock.Detached
		again, err = sp.m.handles.SetHandle(ctx, res, secret.Key(), ttl)
		if errors.Is(err, lock.ErrNoHandle) && ttl == 0 { // the request before did it
			err = nil
		}
		d = again
	}
	if err != nil {
		return Detached{}, fmt.Errorf("handle: %w", err)
	}
	if ttl == 0 {
		sp.m.loose.drop(secret.Key())
		return Detached{}, nil
	}
	sp.m.loose.set(secret.Key(), res, d.Fence, until)
	if g := sp.m.lease.Load(); g != nil {
		g.mu.Lock()
		s := g.holds[d.ID]
		g.mu.Unlock()
		if s != nil {
			s.change(func(l *ledger.Ledger) { l.SetEnd(d.ID, until) })
		}
	}
	return Detached{Handle: handle, Resource: name, Mode: mode, Fence: d.Fence, Until: until}, nil
}
