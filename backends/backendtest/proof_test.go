package backendtest

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lawful are the tests of laws, and others that run in the time of a bubble.
func lawful() (all []conformance) {
	busy := []string{ // they are busy until a time is over, and a bubble's time stands still meanwhile
		"ExclusionUnderLoad", "SharingUnderLoad", "CancelRaces", "Random", "WriterNotStarved", "MinHoldUnderLoad",
		"Get", "OddNames", "Deadlock", "ArbiterDeadlock", // texts that the model does not keep
	}
	for _, c := range suite {
		if _, has := c.capability(newModel(faults{})); has && !slices.Contains(busy, c.name) {
			all = append(all, c)
		}
	}
	return all
}

// TestModelIsLawful: a store that keeps the laws passes.
func TestModelIsLawful(t *testing.T) {
	for _, c := range lawful() {
		t.Run(c.name, func(t *testing.T) {
			for _, failure := range judge(t, faults{}, c.name) {
				t.Error(failure)
			}
		})
	}
}

// TestBrokenLawIsFound: each way to break a law fails the tests that are there for it.
func TestBrokenLawIsFound(t *testing.T) {
	for law, broken := range map[string]struct {
		faults faults
		tests  []string
	}{
		"1 the heartbeat brings no news":       {faults{silentHeartbeat: true}, []string{"HeartbeatTells", "ForceGraceUsedWithoutPushes", "ForceAtOnceWithoutPushes"}},
		"1 news are brought once":              {faults{newsOnce: true}, []string{"HeartbeatTells"}},
		"2 grace by the forcer's clock":        {faults{forcersClock: true}, []string{"ForceInSilence", "ForcerGone", "ForceInLastSilence"}},
		"2 a second force is ignored":          {faults{ignoresSecondForce: true}, []string{"ForceAgain", "ForceAgainWithoutPushes"}},
		"2 a longer grace counts":              {faults{prolongsGrace: true}, []string{"ForceAgain"}},
		"3 a heartbeat revives":                {faults{revivedByHeartbeat: true}, []string{"FirstRequestOfDead", "DeadLeaseIsFinal"}},
		"3 an acquire revives":                 {faults{revivedByAcquire: true}, []string{"FirstRequestOfDead"}},
		"3 a release revives":                  {faults{revivedByRelease: true}, []string{"FirstRequestOfDead"}},
		"4 a server is trusted":                {faults{trustsAnyServer: true}, []string{"ServerLacksGrant", "ServerLacksRelease", "OldServerLacksRelease"}},
		"4 a server that was seen is trusted":  {faults{trustsKnownServer: true}, []string{"OldServerLacksRelease"}},
		"4 a new server grants at once":        {faults{noFailoverGrace: true}, []string{"ServerLacksGrantInSilence"}},
		"9 one lease stalls others":            {faults{stalls: true}, []string{"CrowdOnOne"}},
		"10 a heartbeat costs what is held":    {faults{looksAtEach: true}, []string{"HeartbeatCost"}},
		"a limit of the store cuts leases":     {faults{shortLivedLease: true}, []string{"EveryTTL"}},
		"fences leave no room for a cohort":    {faults{leavesNoRoom: true}, []string{"FencesGrow"}},
		"two permits have one slot":            {faults{sharesSlots: true}, []string{"Permits", "PermitsInOrder", "PermitsOfTheDead", "PermitReplyLost", "PermitsUnderLoad"}},
		"permits of two numbers are asked for": {faults{mixesLimits: true}, []string{"Permits"}},
		"a release ends a MinHold":             {faults{forgetsMinHold: true}, []string{"MinHold", "MinHoldOver", "MinHoldShared", "MinHoldDowngraded", "MinHoldOfPermit", "MinHoldReplyLost", "Model"}},
		"the end of a lease ends a MinHold":    {faults{keepsNoDead: true}, []string{"MinHoldOfTheDead"}},
		"a forced release ends no MinHold":     {faults{keepsForced: true}, []string{"MinHoldForced"}},
		"what is kept is shown as held":        {faults{keepsUnseen: true}, []string{"MinHold", "MinHoldShared", "MinHoldOfTheDead", "Model"}},
		"any key is good":                      {faults{attachesAny: true}, []string{"Detach"}},
		"a former key is good":                 {faults{permitsFormerKeys: true}, []string{"Detach"}},
		"nobody is told who had it":            {faults{attachesQuietly: true}, []string{"DetachTakenOver"}},
		"what is attached has another fence":   {faults{attachesAnew: true}, []string{"Detach", "DetachTakenOver", "DetachReplyLost"}},
		"what is attached ends with its lease": {faults{attachesForGood: true}, []string{"DetachOfTheDead", "Detach"}},
		"what is detached never ends":          {faults{detachesForEver: true}, []string{"DetachOver"}},
		"what is detached cannot be extended":  {faults{extendsNothing: true}, []string{"DetachOver"}},
		"what is detached is its lease's":      {faults{detachesNothing: true}, []string{"Detach"}},
		"a record is written over any other":   {faults{lastWriteWins: true}, []string{"RecordVersions", "RecordRace", "RecordExpires"}},
		"the same write does not find itself":  {faults{writesTwice: true}, []string{"RecordVersions"}},
		"an unheard write is another":          {faults{losesRecords: true}, []string{"RecordReplyLost"}},
		"a record is kept for longer":          {faults{keepsForLonger: true}, []string{"RecordExpires"}},
		"a record that is over stays":          {faults{keepsOldRecords: true}, []string{"RecordExpires"}},
		"records are in no order":              {faults{listsAtRandom: true}, []string{"RecordPages", "RecordValues"}},
		"9 what dead waiters leave is kept":    {faults{keepsDeadWaiters: true}, []string{"DeadWaiterSkipped", "DeadNotListed"}},
	} {
		for _, name := range broken.tests {
			t.Run(law+"/"+name, func(t *testing.T) {
				failures := judge(t, broken.faults, name)
				if len(failures) == 0 {
					t.Error("the test passes")
				}
				t.Log(failures)
			})
		}
	}
}

// modelHolds bounds what a test of many holds takes of a model, which looks at all of them for each request.
const modelHolds = 200

// judge runs one test of the suite on a model, in a bubble, and gives its failures.
func judge(t *testing.T, bad faults, name string) (failures []string) {
	t.Helper()
	i := slices.IndexFunc(suite, func(c conformance) bool { return c.name == name })
	if i < 0 {
		t.Fatalf("the suite has no %s", name)
	}
	return judgeThat(t, bad, suite[i])
}

func judgeThat(t *testing.T, bad faults, c conformance) (failures []string) {
	synctest.Test(t, func(t *testing.T) {
		v := &verdict{TB: t}
		v.run(func() { runOne(v, newModel(bad), Limits{Holds: modelHolds}, c) })
		v.end()
		failures = v.failures
	})
	return failures
}

// verdict is a test whose failure is what is asked for.
type verdict struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	cleanups []func()
}

// run runs a function that may end its goroutine.
func (v *verdict) run(f func()) {
	var wg sync.WaitGroup
	wg.Go(f)
	wg.Wait()
}

// end cleans up.
func (v *verdict) end() {
	for i := len(v.cleanups) - 1; i >= 0; i = len(v.cleanups) - 1 {
		f := v.cleanups[i]
		v.cleanups = v.cleanups[:i]
		v.run(f)
	}
}

func (v *verdict) Cleanup(f func()) { v.cleanups = append(v.cleanups, f) }

func (v *verdict) Errorf(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.failures = append(v.failures, fmt.Sprintf(format, args...))
}

func (v *verdict) Error(args ...any) { v.Errorf("%s", fmt.Sprint(args...)) }

func (v *verdict) Fatalf(format string, args ...any) {
	v.Errorf(format, args...)
	runtime.Goexit()
}

func (v *verdict) FailNow() { runtime.Goexit() }

func (v *verdict) Failed() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.failures) > 0
}
