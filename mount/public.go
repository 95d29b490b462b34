package mount

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
)

// publicRequest is what is printed of a Request.
type publicRequest struct {
	Source, Target, FSType string
	// Options are without the values of those that are for the filesystem.
	Options                []string
	UserOptions, Sensitive int
	SELinuxContext         string
}

func (r Request) public() publicRequest {
	p := publicRequest{
		Source: scrubbed(r.Source, secretsOf(r.Sensitive)), Target: r.Target, FSType: r.FSType,
		UserOptions: len(r.UserOptions), Sensitive: len(r.Sensitive), SELinuxContext: r.SELinuxContext,
	}
	for _, option := range r.Options {
		p.Options = append(p.Options, withoutValue(option))
	}
	return p
}

// Format implements [fmt.Formatter]: with every verb, everything but the values of options, and of UserOptions and Sensitive
// their number.
func (r Request) Format(state fmt.State, verb rune) { format(state, verb, r.public()) }

// MarshalJSON implements [json.Marshaler]: the same as Format.
func (r Request) MarshalJSON() ([]byte, error) { return json.Marshal(r.public()) }

// LogValue implements [slog.LogValuer]: the same as Format.
func (r Request) LogValue() slog.Value { return slog.AnyValue(r.public()) }

// publicPlan is what is printed of a Plan.
type publicPlan struct {
	Source, Target, FSType          string
	Bind, Recursive, Below, Remount bool
	Set, Clear                      []string
	Propagation                     string
	Data                            int
	SELinuxContext                  string
}

func (p Plan) printed() publicPlan {
	return publicPlan{
		Source: p.scrub(p.Source), Target: p.Target, FSType: p.FSType,
		Bind: p.Bind, Recursive: p.Recursive, Below: p.Below, Remount: p.Remount,
		Set: p.Set, Clear: p.Clear, Propagation: p.Propagation, Data: len(p.Data), SELinuxContext: p.SELinuxContext,
	}
}

// Format implements [fmt.Formatter]: with every verb, everything but Data, of which it is the number.
func (p Plan) Format(state fmt.State, verb rune) { format(state, verb, p.printed()) }

// MarshalJSON implements [json.Marshaler]: the same as Format.
func (p Plan) MarshalJSON() ([]byte, error) { return json.Marshal(p.printed()) }

// LogValue implements [slog.LogValuer]: the same as Format.
func (p Plan) LogValue() slog.Value { return slog.AnyValue(p.printed()) }

func format(state fmt.State, verb rune, public any) {
	_, _ = fmt.Fprintf(state, fmt.FormatString(state, verb), public) // fmt has nobody to tell of an error
}

// secretsOf lists what must not be printed of the options: each whole, and the value of each.
func secretsOf(options []string) []string {
	secrets := slices.Clone(options)
	for _, option := range options {
		if _, value, ok := strings.Cut(option, "="); ok && value != "" {
			secrets = append(secrets, value)
		}
	}
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	return secrets
}

// scrubbed returns text without the secrets, of which the longest come first.
func scrubbed(text string, secrets []string) string {
	for _, secret := range secrets {
		text = strings.ReplaceAll(text, secret, "***")
	}
	return text
}

func withoutValue(option string) string {
	key, _, ok := strings.Cut(option, "=")
	if !ok {
		return option
	}
	return key + "=***"
}

// maxShown is how many bytes of what a user wrote are in an error.
const maxShown = 64

// optionKey quotes the key of an option for an error, or the beginning of it: the value may be a secret.
func optionKey(option string) string { key, _, _ := strings.Cut(option, "="); return shown(key) }

// shown quotes the beginning of what a user wrote.
func shown(text string) string {
	if len(text) <= maxShown {
		return fmt.Sprintf("%q", text)
	}
	return fmt.Sprintf("%q... (%d bytes)", text[:maxShown], len(text))
}
