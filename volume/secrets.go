package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
)

// Secrets are the values that a plugin gets and that may be shown to no other reader: those of attributes, parameters and mount
// options whose keys the plugin does not declare as public. The caller of a plugin redacts them in its errors and panics. The
// zero value has none. It is immutable.
type Secrets struct {
	values []string // the longest first
}

const (
	// minSecret is how long a value is at least to be taken for a secret.
	minSecret = 3
	// minInside is how long a value is at least to be recognised inside a word.
	minInside = 8
)

// Secrets returns the values in the spec that are not public.
func (s *Spec) Secrets(public []string) Secrets {
	if s == nil {
		return Secrets{}
	}
	keys := publicKeys(public)
	var values []string
	if driver, ok := s.Driver(); ok {
		values = keys.hidden(driver.Parameters)
	}
	if s.PersistentVolume != nil {
		values = append(values, keys.hiddenOptions(s.PersistentVolume.Spec.MountOptions)...)
	}
	if s.Volume != nil {
		values = append(values, keys.hiddenURLs(&s.Volume.VolumeSource)...)
	}
	return newSecrets(values)
}

// Secrets returns the values in the options that are not public.
func (o VolumeOptions) Secrets(public []string) Secrets {
	keys := publicKeys(public)
	values := slices.Concat(keys.hidden(o.Parameters), keys.hidden(o.MutableParameters), keys.hiddenOptions(o.MountOptions))
	if o.Source != nil {
		values = append(values, NewSpecFromPersistentVolume(o.Source, false).Secrets(public).values...)
	}
	return newSecrets(values)
}

func (k publicKeys) hidden(options map[string]string) []string {
	var values []string
	for key, value := range options {
		if !slices.Contains(k, key) {
			values = append(values, value)
		}
	}
	return values
}

func (k publicKeys) hiddenOptions(options []string) []string {
	var values []string
	for _, option := range options {
		if key, value, _ := strings.Cut(option, "="); !slices.Contains(k, key) {
			values = append(values, value)
		}
	}
	return values
}

func (k publicKeys) hiddenURLs(source *v1.VolumeSource) []string {
	var values []string
	if source.GitRepo != nil && !slices.Contains(k, "repository") {
		values = append(values, source.GitRepo.Repository)
	}
	if source.AzureDisk != nil && !slices.Contains(k, "diskURI") {
		values = append(values, source.AzureDisk.DataDiskURI)
	}
	return values
}

// NewSecrets returns values to redact, for a plugin that reads secrets itself.
func NewSecrets(values ...string) Secrets { return newSecrets(slices.Clone(values)) }

func newSecrets(values []string) Secrets {
	for _, value := range values {
		if quoted := strings.Trim(strconv.Quote(value), `"`); quoted != value {
			values = append(values, quoted) // as %q has it
		}
	}
	values = slices.DeleteFunc(values, func(value string) bool {
		return len(value) < minSecret || value == "true" || value == "false"
	})
	slices.SortFunc(values, func(a, b string) int { return len(b) - len(a) })
	return Secrets{values: values}
}

// RedactText returns text with [Redacted] in the place of each secret. It redacts a secret of fewer than eight bytes only where
// it is a whole word. It does not redact secrets of fewer than three bytes, nor "true" and "false".
func (s Secrets) RedactText(text string) string {
	for _, value := range s.values {
		text = redactValue(text, value)
	}
	return text
}

func redactValue(text, value string) string {
	if len(value) >= minInside {
		return strings.ReplaceAll(text, value, Redacted)
	}
	var redacted strings.Builder
	for rest := text; ; {
		before, after, found := strings.Cut(rest, value)
		redacted.WriteString(before)
		if !found {
			return redacted.String()
		}
		last, _ := utf8.DecodeLastRuneInString(text[:len(text)-len(value)-len(after)])
		next, _ := utf8.DecodeRuneInString(after)
		if isWord(last) || isWord(next) {
			redacted.WriteString(value)
		} else {
			redacted.WriteString(Redacted)
		}
		rest = after
	}
}

func isWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }

// Redact returns err, or where its text holds a secret, an error whose text holds none. That one unwraps to err, so that
// errors.Is and errors.As answer as before; do not print what they return.
func (s Secrets) Redact(err error) error {
	if err == nil || len(s.values) == 0 {
		return err
	}
	text := err.Error()
	redacted := s.RedactText(text)
	if redacted == text {
		return err
	}
	return &redactedError{text: redacted, err: err}
}

// RedactPanic returns the value of a panic, or what stands for it where its text holds a secret.
func (s Secrets) RedactPanic(value any) any {
	text := fmt.Sprint(value) // which gets over a method that panics
	redacted := s.RedactText(text)
	if redacted == text {
		return value
	}
	if err, ok := value.(error); ok {
		return &redactedError{text: redacted, err: err}
	}
	return errors.New(redacted)
}

// SecretGetter gets the secrets that specs refer to. A plugin that needs them takes one in its constructor; the program that
// embeds the library knows where secrets are. plugins/files takes the same.
type SecretGetter interface {
	// Secret returns the secret of a namespace by its name. It is not changed. The error must hold nothing of the content.
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// Secret returns the content of the secret that the source refers to, for a pod in namespace; nil when it refers to none. Give
// what is for the filesystem to mount.Request.Sensitive. An error of the getter is transient; without a getter it matches
// [ErrUnsupported].
func (d Driver) Secret(ctx context.Context, from SecretGetter, namespace string) (map[string][]byte, error) {
	if d.SecretName == "" {
		return nil, nil
	}
	namespace = cmp.Or(d.SecretNamespace, namespace)
	if from == nil {
		return nil, fmt.Errorf("plugin %q was given nothing to get secret %q of namespace %q from: %w",
			d.PluginName, d.SecretName, namespace, ErrUnsupported)
	}
	secret, err := from.Secret(ctx, namespace, d.SecretName)
	if err == nil && secret == nil {
		err = ErrInvalid
	}
	if err != nil {
		return nil, Transient(fmt.Errorf("secret %q of namespace %q: %w", d.SecretName, namespace, err))
	}
	return secret.Data, nil
}

// redactedError is an error without its secrets.
type redactedError struct {
	text string
	err  error
}

func (e *redactedError) Error() string { return e.text }

// Unwrap returns the error with its secrets.
func (e *redactedError) Unwrap() error { return e.err }

// Format implements fmt.Formatter: the text, whatever the verb.
func (e *redactedError) Format(state fmt.State, verb rune) { format(state, verb, e.text) }
