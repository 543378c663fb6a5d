package postgres

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/locksidecar/locksidecar/internal/testengine"
)

func TestMain(m *testing.M) {
	testengine.SideBySide(4)
	goleak.VerifyTestMain(testengine.Main(m))
}
