package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// rivalKey is the annotation that Rivals leaves on a flag.
const rivalKey = "locksidecar_rival"

// Rivals says that two flags are two ways to give one setting, such as a value
// and a file with the value in it. Giving both at the same place is refused;
// one that was given at a place that wins hides the other.
func Rivals(flags *pflag.FlagSet, a, b string) {
	annotate(flags, a, rivalKey, b)
	annotate(flags, b, rivalKey, a)
}

// Annotations of flags.
const (
	hiddenKey = "locksidecar_hidden_by"
	noFileKey = "locksidecar_not_in_file"
	noEnvKey  = "locksidecar_not_in_environment"
	needsKey  = "locksidecar_needs"
)

// Hides says that a flag, when it is on the command line, makes others mean nothing: what
// the environment and the file say of these does not count, and giving one of
// them on the command line too is refused.
func Hides(flags *pflag.FlagSet, flag string, others ...string) {
	for _, name := range others {
		annotate(flags, name, hiddenKey, flag)
	}
}

// Needs says that a flag means nothing where none of the others is given: then it is
// refused on the command line. The environment may have it for another command.
func Needs(flags *pflag.FlagSet, flag string, others ...string) {
	annotate(flags, flag, needsKey, others...)
}

// NotInFile says that a flag is not set by the file, which may have the key all the
// same, for another command.
func NotInFile(flags *pflag.FlagSet, flag string) { annotate(flags, flag, noFileKey, "yes") }

// OnlyCommandLine says that neither the file nor the environment sets a flag.
func OnlyCommandLine(flags *pflag.FlagSet, flag string) {
	NotInFile(flags, flag)
	annotate(flags, flag, noEnvKey, "yes")
}

func annotate(flags *pflag.FlagSet, flag, key string, values ...string) {
	if err := flags.SetAnnotation(flag, key, values); err != nil {
		panic(err) // a flag of that name must have been defined before
	}
}

// Source is where settings come from beside the command line.
type Source struct {
	Env   func(name string) (string, bool) // os.LookupEnv
	File  string                           // path of the YAML file; empty: none
	Known []string                         // keys that the file may have though these flags do not
}

// Apply sets every flag that was not on the command line from the environment,
// else from the file. An empty variable counts as not set. Variables that name
// no flag are left alone: Kubernetes sets LOCKSIDECAR_PORT and the like where
// there is a Service called locksidecar. Keys of the file are ours alone, so an
// unknown one is refused, with the known one that looks most like it.
func Apply(flags *pflag.FlagSet, src Source) error {
	if err := checkRivals(flags); err != nil {
		return err
	}
	var needy []*pflag.Flag // of the command line
	flags.Visit(func(f *pflag.Flag) {
		if f.Annotations[needsKey] != nil {
			needy = append(needy, f)
		}
	})
	if err := applyEnv(flags, src.Env); err != nil {
		return err
	}
	if src.File != "" {
		if err := applyFile(flags, src.File, src.Known); err != nil {
			return err
		}
	}
	return checkNeeds(flags, needy)
}

func checkNeeds(flags *pflag.FlagSet, needy []*pflag.Flag) error {
	for _, f := range needy {
		others := f.Annotations[needsKey]
		if !slices.ContainsFunc(others, flags.Changed) {
			return fmt.Errorf("--%s means nothing without --%s", f.Name, others[0])
		}
	}
	return nil
}

// checkRivals looks at what came from the command line.
func checkRivals(flags *pflag.FlagSet) error {
	var err error
	flags.Visit(func(f *pflag.Flag) {
		for _, key := range []string{rivalKey, hiddenKey} {
			if r := other(flags, f, key); r != nil && r.Changed && err == nil {
				err = fmt.Errorf("--%s and --%s are two ways to say one thing: give one of them", f.Name, r.Name)
			}
		}
	})
	return err
}

func applyEnv(flags *pflag.FlagSet, env func(string) (string, bool)) error {
	values := map[string]string{} // flag -> value
	flags.VisitAll(func(f *pflag.Flag) {
		if v, ok := env(EnvName(f.Name)); ok && v != "" && !given(flags, f) && f.Annotations[noEnvKey] == nil {
			values[f.Name] = v
		}
	})
	var err error
	flags.VisitAll(func(f *pflag.Flag) {
		v, ok := values[f.Name]
		if !ok || err != nil {
			return
		}
		if r := rival(flags, f); r != nil && values[r.Name] != "" {
			err = fmt.Errorf("%s and %s are two ways to say one thing: set one of them", EnvName(f.Name), EnvName(r.Name))
			return
		}
		if e := set(f, []string{v}); e != nil {
			err = fmt.Errorf("environment variable %s: %w", EnvName(f.Name), e)
		}
	})
	return err
}

func applyFile(flags *pflag.FlagSet, path string, known []string) error {
	settings, err := readFile(path)
	if err != nil {
		return err
	}
	names := slices.Clone(known)
	flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	inFile := map[string]bool{}
	for _, s := range settings {
		inFile[s.key] = true
		if !slices.Contains(names, s.key) {
			return fmt.Errorf("%s, line %d: unknown key %q%s", path, s.line, s.key, didYouMean(s.key, names))
		}
	}
	taken := map[string]bool{}
	flags.VisitAll(func(f *pflag.Flag) { taken[f.Name] = given(flags, f) })
	for _, s := range settings {
		f := flags.Lookup(s.key)
		if f == nil || taken[s.key] || f.Annotations[noFileKey] != nil {
			continue
		}
		if r := rival(flags, f); r != nil && inFile[r.Name] {
			return fmt.Errorf("%s, line %d: %s and %s are two ways to say one thing: keep one of them", path, s.line, f.Name, r.Name)
		}
		if err := set(f, s.values); err != nil {
			return fmt.Errorf("%s, line %d: %s: %w", path, s.line, s.key, err)
		}
	}
	return nil
}

// given reports whether the flag, or the one that says the same in another way,
// has a value already, or one that hides it.
func given(flags *pflag.FlagSet, f *pflag.Flag) bool {
	for _, key := range []string{rivalKey, hiddenKey} {
		if o := other(flags, f, key); o != nil && o.Changed {
			return true
		}
	}
	return f.Changed
}

func rival(flags *pflag.FlagSet, f *pflag.Flag) *pflag.Flag { return other(flags, f, rivalKey) }

func other(flags *pflag.FlagSet, f *pflag.Flag, key string) *pflag.Flag {
	if a := f.Annotations[key]; len(a) == 1 {
		return flags.Lookup(a[0])
	}
	return nil
}

// set gives a flag its value, as if it had been on the command line.
func set(f *pflag.Flag, values []string) error {
	list, isList := f.Value.(pflag.SliceValue)
	var err error
	switch {
	case isList && len(values) != 1:
		err = list.Replace(values)
	case len(values) != 1:
		return fmt.Errorf("takes one value, not a list")
	case f.Value.Type() == "bool":
		err = f.Value.Set(yesOrNo(values[0]))
	default:
		err = f.Value.Set(values[0])
	}
	if err != nil {
		return fmt.Errorf("invalid value %q: %w", strings.Join(values, ","), err)
	}
	f.Changed = true
	return nil
}

// yesOrNo lets people write a truth as in YAML 1.1 and in many programs.
func yesOrNo(s string) string {
	switch strings.ToLower(s) {
	case "yes", "on":
		return "true"
	case "no", "off":
		return "false"
	}
	return s
}
