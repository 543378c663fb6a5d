package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newMan(io streams) *cobra.Command {
	return &cobra.Command{
		Use:   "man [COMMAND]",
		Short: "Write the manual page of a command",
		Long:  "Man writes a manual page for man(1): that of locksidecar itself, or of one COMMAND.",
		Example: `  locksidecar man run | man -l -
  locksidecar man run >/usr/local/share/man/man1/locksidecar-run.1`,
		Args: argsBetween(0, 1, "at most one COMMAND"),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			for _, c := range cmd.Root().Commands() {
				if len(args) == 0 && c.IsAvailableCommand() {
					names = append(names, c.Name())
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			of, _, err := cmd.Root().Find(args)
			if err != nil || (len(args) > 0 && of == cmd.Root()) {
				return usage("there is no command %q", args[0])
			}
			return writeMan(io.out, of)
		},
	}
}

// writeMan writes a page in the language of man(7).
func writeMan(w io.Writer, cmd *cobra.Command) error {
	var b strings.Builder
	name := strings.ReplaceAll(cmd.CommandPath(), " ", "-")
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"locksidecar %s\"\n", strings.ToUpper(name), buildVersion())
	section := func(title, text string) {
		if text != "" {
			fmt.Fprintf(&b, ".SH %s\n.nf\n%s\n.fi\n", title, roff(text))
		}
	}
	section("NAME", name+" - "+cmd.Short)
	section("SYNOPSIS", cmd.UseLine())
	section("DESCRIPTION", cmd.Long)
	b.WriteString(".SH OPTIONS\n")
	options := func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		short, value := "", ""
		if f.Shorthand != "" {
			short = "-" + f.Shorthand + ", "
		}
		kind, text := pflag.UnquoteUsage(f)
		if kind != "" {
			value = " " + kind
		}
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "[]" {
			text += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(&b, ".TP\n.B %s\n%s\n", roff(short+"--"+f.Name+value), roff(strings.ReplaceAll(text, "\n", " ")))
	}
	cmd.LocalFlags().VisitAll(options)
	cmd.InheritedFlags().VisitAll(options)
	section("EXAMPLES", cmd.Example)
	var others []string
	for _, c := range cmd.Root().Commands() {
		if c != cmd && c.IsAvailableCommand() {
			others = append(others, "locksidecar-"+c.Name()+"(1)")
		}
	}
	section("SEE ALSO", strings.Join(others, ", "))
	_, err := io.WriteString(w, b.String())
	return err
}

// roff keeps text from being read as requests.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
