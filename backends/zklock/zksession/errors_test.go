package zksession

import (
	"errors"
	"fmt"
	"net"
	"testing"

	"github.com/go-zookeeper/zk"
)

// TestOutcome: what a server has answered is its answer, also where the library does not
// know the number; what leaves the outcome open is lost.
func TestOutcome(t *testing.T) {
	for _, code := range []zk.ErrCode{-101, -125, -127, -2} {
		err := outcome(fromCode(code))
		var answer Error
		if !errors.As(err, &answer) || errors.Is(err, ErrLost) {
			t.Errorf("the answer %d is read as %v", code, err)
		}
	}
	for _, err := range []error{fromCode(-1), fromCode(-4), zk.ErrConnectionClosed, &net.OpError{Err: errors.New("broken")}, errors.New("unknown error: of what kind?")} {
		if got := outcome(err); !errors.Is(got, ErrLost) {
			t.Errorf("%v is read as %v", err, got)
		}
	}
}

// fromCode is what the library makes of a number (ErrCode.toError).
func fromCode(c zk.ErrCode) error {
	if c == -101 {
		return zk.ErrNoNode
	}
	return fmt.Errorf("unknown error: %v", c)
}
