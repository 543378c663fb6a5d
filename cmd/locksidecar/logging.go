package main

import (
	"io"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/locksidecar/locksidecar/internal/supervise"
)

// Keys of log lines.
const (
	keyAddress = "address"
	keyDrain   = "drain"
	keyError   = "error"
	keyHolds   = "holds"
	keyLost    = "lost"
	keyName    = "name"
	keyShard   = "shard"
	keySignal  = "signal"
	keyStore   = "store"
	keyTry     = "try"
	keyVersion = "version"
)

// logFlags choose what is logged and how.
type logFlags struct {
	level, format string
}

func addLog(cmd *cobra.Command, level string) *logFlags {
	l := &logFlags{}
	cmd.Flags().StringVar(&l.level, "log-level", level, "what to log to stderr: trace, debug, info, warn, error or off")
	cmd.Flags().StringVar(&l.format, "log-format", "text", "how to log: text or json")
	complete(cmd, "log-level", "trace", "debug", "info", "warn", "error", "off")
	complete(cmd, "log-format", "text", "json")
	return l
}

// logger makes the root logger.
func (l *logFlags) logger(w io.Writer) (hclog.Logger, error) {
	level := hclog.LevelFromString(l.level)
	if level == hclog.NoLevel {
		return nil, usage("--log-level is %q: must be trace, debug, info, warn, error or off", l.level)
	}
	if l.format != "text" && l.format != "json" {
		return nil, usage("--log-format is %q: must be text or json", l.format)
	}
	color := hclog.ColorOff
	if f, ok := w.(*os.File); ok && supervise.IsTerminal(f) {
		color = hclog.AutoColor
	}
	return hclog.New(&hclog.LoggerOptions{
		Name:       "locksidecar",
		Level:      level,
		Output:     w,
		JSONFormat: l.format == "json",
		Color:      color,
	}), nil
}
