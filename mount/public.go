package mount

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
)

// publicRequest is the printed form of a Request.
type publicRequest struct {
	Source, Target, FSType string
	// Options are the options without their values.
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

// Format implements [fmt.Formatter]. With every verb it prints all fields, but no values of options, and only the number of
// UserOptions and Sensitive.
func (r Request) Format(state fmt.State, verb rune) { format(state, verb, r.public()) }

// MarshalJSON implements [json.Marshaler]. It shows the same as Format.
func (r Request) MarshalJSON() ([]byte, error) { return json.Marshal(r.public()) }

// LogValue implements [slog.LogValuer]. It shows the same as Format.
func (r Request) LogValue() slog.Value { return slog.AnyValue(r.public()) }

// publicPlan is the printed form of a Plan.
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

// Format implements [fmt.Formatter]. With every verb it prints all fields, but only the length of Data.
func (p Plan) Format(state fmt.State, verb rune) { format(state, verb, p.printed()) }

// MarshalJSON implements [json.Marshaler]. It shows the same as Format.
func (p Plan) MarshalJSON() ([]byte, error) { return json.Marshal(p.printed()) }

// LogValue implements [slog.LogValuer]. It shows the same as Format.
func (p Plan) LogValue() slog.Value { return slog.AnyValue(p.printed()) }

func format(state fmt.State, verb rune, public any) {
	_, _ = fmt.Fprintf(state, fmt.FormatString(state, verb), public) // a Formatter cannot return an error
}

// secretsOf returns what must not be printed: each option as a whole, and the value of each, the longest first.
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

// scrubbed returns text with each secret replaced by three stars. The longest secrets must come first.
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

// maxShown is how many bytes of a user's text an error shows.
const maxShown = 64

// optionKey quotes the key of an option for an error, cut at maxShown bytes. It leaves out the value, which may be a
// secret.
func optionKey(option string) string { key, _, _ := strings.Cut(option, "="); return shown(key) }

// shown quotes a user's text for an error, cut at maxShown bytes.
func shown(text string) string {
	if len(text) <= maxShown {
		return fmt.Sprintf("%q", text)
	}
	return fmt.Sprintf("%q... (%d bytes)", text[:maxShown], len(text))
}
