package config

import "strings"

// Nearest is the candidate that a mistyped name most likely means, or "" when
// none is near.
func Nearest(name string, candidates []string) string {
	name = strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	best, bestDistance := "", max(2, len(name)/3)+1
	for _, c := range candidates {
		if d := distance(name, c); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

func didYouMean(name string, candidates []string) string {
	if n := Nearest(name, candidates); n != "" {
		return "; did you mean " + n + "?"
	}
	return ""
}

// distance is the number of letters to add, drop or change (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
