package faultproxy

import "bytes"

// rewriter replaces a word by another that is as long, so that the lengths
// which a protocol tells beforehand stay true.
type rewriter struct{ from, to []byte }

func newRewriter(from, to string) *rewriter {
	if len(from) != len(to) {
		panic("faultproxy: a rewritten word must keep its length: " + from + ", " + to)
	}
	return &rewriter{from: []byte(from), to: []byte(to)}
}

// stream starts on a new stream of bytes; nil on nil.
func (r *rewriter) stream() *rewriting {
	if r == nil {
		return nil
	}
	return &rewriting{rewriter: r}
}

// rewriting is a rewriter in the middle of one stream.
type rewriting struct {
	*rewriter
	kept []byte // the beginning of the word at the end of the last piece
}

// rewrite returns what can be passed on of the stream so far. What may be the
// beginning of the word is kept until more is there, or the last piece. Answers
// of Redis end with a line break, which the word does not have, so nothing is
// kept that a client waits for. On nil it returns the piece as it is.
func (r *rewriting) rewrite(piece []byte, last bool) []byte {
	if r == nil {
		return piece
	}
	all := append(r.kept, piece...) // kept is used up here
	all = bytes.ReplaceAll(all, r.from, r.to)
	keep := 0
	if !last {
		for n := min(len(r.from)-1, len(all)); n > 0; n-- {
			if bytes.HasSuffix(all, r.from[:n]) {
				keep = n
				break
			}
		}
	}
	r.kept = bytes.Clone(all[len(all)-keep:])
	return all[:len(all)-keep]
}
