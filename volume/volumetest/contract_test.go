package volumetest

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var ruleLine = regexp.MustCompile(`(?m)^- \*\*([A-Z]\d+)\*\* (.*)$`)

func TestContractPageAndCasesSayTheSame(t *testing.T) {
	page, err := os.ReadFile("../../docs/contract.md")
	require.NoError(t, err)
	var written, tried [][2]string
	for _, match := range ruleLine.FindAllStringSubmatch(string(page), -1) {
		written = append(written, [2]string{match[1], match[2]})
	}
	for _, c := range Cases() {
		tried = append(tried, [2]string{c.Rule, c.Sentence})
	}
	assert.Equal(t, tried, written)
}

func TestRulesHaveNumbersOfTheirOwnAndAGroup(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Cases() {
		assert.False(t, seen[c.Rule], c.Rule)
		seen[c.Rule] = true
		assert.NotEmpty(t, c.Group)
		assert.Regexp(t, `\bM(UST|AY)\b.*\.$`, c.Sentence)
	}
	for _, group := range groups() {
		for _, c := range group {
			assert.Equal(t, group[0].Group, c.Group)
		}
	}
}
