package supervise

import (
	"os"
	"os/signal"
	"slices"
)

// Notify is signal.Notify, except that signals which were ignored when this
// process began stay ignored, as nohup(1) and shells with background jobs mean it.
func Notify(c chan<- os.Signal, signals ...os.Signal) {
	wanted := slices.DeleteFunc(slices.Clone(signals), signal.Ignored)
	if len(wanted) > 0 { // with none, Notify would take all
		signal.Notify(c, wanted...)
	}
}
