package redislock

import (
	"net"
	"testing"
	"time"
)

// limited is a connection on which one can see the limits that are set.
type limited struct {
	net.Conn
	reading, writing time.Time
}

func (l *limited) SetReadDeadline(t time.Time) error  { l.reading = t; return nil }
func (l *limited) SetWriteDeadline(t time.Time) error { l.writing = t; return nil }
func (l *limited) Read(b []byte) (int, error)         { return len(b), nil }
func (l *limited) Write(b []byte) (int, error)        { return len(b), nil }

// The limits of a request that is alone on its connection are gone when it has its answer, so that
// they wake nobody later. Each part of an answer has them; those of requests that follow each other stay.
func TestLimitsOfRareRequestsAreTakenAway(t *testing.T) {
	inner := &limited{}
	c := &conn{Conn: inner, io: inner, r: newRoad(nil)}
	begin := time.Now()
	for _, request := range []struct {
		at   time.Duration
		gone bool
	}{
		{0, true}, {time.Second, true}, {time.Second + rarely - 1, false}, {2 * time.Second, true},
	} {
		limit := begin.Add(request.at)
		_ = c.SetReadDeadline(time.Time{}) // as the driver does before it uses a connection again
		for _, way := range []struct {
			name string
			set  func(time.Time) error
			move func([]byte) (int, error)
			is   *time.Time
		}{
			{"writing", c.SetWriteDeadline, c.Write, &inner.writing},
			{"reading", c.SetReadDeadline, c.Read, &inner.reading},
		} {
			if _ = way.set(limit); !way.is.Equal(limit) {
				t.Errorf("%s %s: the limit is %s, want %s", request.at, way.name, way.is, limit)
			}
			for range 2 {
				_, _ = way.move(make([]byte, 1))
				if way.is.IsZero() != request.gone {
					t.Errorf("%s %s: afterwards the limit is %s", request.at, way.name, way.is)
				}
			}
		}
	}
}

// partly is a connection whose answers come in parts: it tells the limit under which each is read.
type partly struct {
	limited
	under []time.Time
}

func (p *partly) Read([]byte) (int, error) {
	p.under = append(p.under, p.reading)
	return 1, nil
}

// Each part of an answer is waited for until the same moment.
func TestPartsOfAnAnswerHaveTheLimit(t *testing.T) {
	inner := &partly{}
	c := &conn{Conn: inner, io: inner, r: newRoad(nil)}
	limit := time.Now()
	_ = c.SetReadDeadline(limit)
	for range 3 {
		_, _ = c.Read(nil)
	}
	for i, under := range inner.under {
		if !under.Equal(limit) {
			t.Errorf("part %d is read with the limit %s, want %s", i, under, limit)
		}
	}
}
