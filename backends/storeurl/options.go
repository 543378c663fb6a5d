package storeurl

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Options are those behind the question mark. A store asks for each that it
// knows; the first that is wrong, or that nobody asked for, is the error of Err.
type Options struct {
	values url.Values
	asked  map[string]bool
	err    error
}

func newOptions(v url.Values) *Options { return &Options{values: v, asked: make(map[string]bool)} }

// get is an option's value; the last one when it is there twice.
func (o *Options) get(name string) (string, bool) {
	o.asked[name] = true
	v := o.values[name]
	if len(v) == 0 {
		return "", false
	}
	return v[len(v)-1], true
}

// Refuse makes an option the error, unless there is one already. problem
// completes the sentence "option <name> …".
func (o *Options) Refuse(name, problem string) {
	if o.err == nil {
		o.err = Invalid("option " + name + " " + problem)
	}
}

// String is an option of any text.
func (o *Options) String(name, usual string) string {
	if v, ok := o.get(name); ok {
		return v
	}
	return usual
}

// Has reports whether the option is given.
func (o *Options) Has(name string) bool {
	_, ok := o.get(name)
	return ok
}

// Bool is an option that is true or false.
func (o *Options) Bool(name string, usual bool) bool {
	v, ok := o.get(name)
	if !ok {
		return usual
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		o.Refuse(name, "must be true or false")
	}
	return b
}

// Int is an option that is a number from least to most.
func (o *Options) Int(name string, usual, least, most int) int {
	v, ok := o.get(name)
	if !ok {
		return usual
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < least || n > most {
		o.Refuse(name, fmt.Sprintf("must be a number from %d to %d", least, most))
	}
	return n
}

// Duration is an option that is a duration from least to most.
func (o *Options) Duration(name string, usual, least, most time.Duration) time.Duration {
	v, ok := o.get(name)
	if !ok {
		return usual
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < least || d > most {
		o.Refuse(name, "must be a duration from "+short(least)+" to "+short(most))
	}
	return d
}

// short is a duration as people write it: 1m and not 1m0s.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// OneOf is an option that is one of some words.
func (o *Options) OneOf(name, usual string, words ...string) string {
	v, ok := o.get(name)
	if !ok {
		return usual
	}
	if !slices.Contains(words, v) {
		o.Refuse(name, "must be one of "+strings.Join(words, ", "))
	}
	return v
}

// Err is the error of the first option that was wrong, or that is not known.
// Call it when all have been asked for.
func (o *Options) Err() error {
	if o.err != nil {
		return o.err
	}
	var unknown []string
	for name := range o.values {
		if !o.asked[name] {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		return Invalid("option " + slices.Min(unknown) + " is not known")
	}
	return nil
}
