package testengine

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"go.uber.org/goleak"
)

// holderEnv makes the test binary a process that starts a server and is killed.
const holderEnv = "TESTENGINE_HOLDER"

func TestMain(m *testing.M) {
	if os.Getenv(holderEnv) != "" {
		hold()
	}
	logging.Disable() // failing connections are what is tested here
	goleak.VerifyTestMain(Main(m),
		// The driver's pool looks once a second whether a server that was down is
		// up again, and sees only then that it was closed meanwhile.
		goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"))
}

func hold() {
	dir, err := newLocal(nil)
	if err != nil {
		panic(err)
	}
	l := dir.(*local)
	p, err := l.start(background, "x", "sleep", "600")
	if err != nil {
		panic(err)
	}
	fmt.Println(p.pid(), l.dir)
	time.Sleep(10 * time.Minute) // until it is killed
}
