package store

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// ManifestError says what is wrong with which document of a manifest. It matches [ErrInvalid].
type ManifestError struct {
	// Document is the number of the document, from 1.
	Document int
	// Line is the line of the input at which the document begins, from 1.
	Line int
	// Item is the number of the item in a document of kind List, from 1; 0 in any other document.
	Item int
	// Err is what is wrong, with the field where there is one; never nil.
	Err error
}

// Error names the document, its line and the cause.
func (e *ManifestError) Error() string {
	item := ""
	if e.Item > 0 {
		item = fmt.Sprintf(", item %d", e.Item)
	}
	return fmt.Sprintf("document %d (from line %d)%s: %v", e.Document, e.Line, item, e.Err)
}

// Unwrap returns the cause and [ErrInvalid].
func (e *ManifestError) Unwrap() []error { return []error{e.Err, ErrInvalid} }

// Decode reads a manifest: YAML or JSON, one document or several, each an object of one of [Kinds] or a List of such.
// It is strict: an unknown field, a field given twice and an unknown kind are each a [*ManifestError]. Documents that
// hold nothing but comments are left out. An error of r is returned as it is.
func Decode(r io.Reader) ([]runtime.Object, error) { return (*KindTable)(nil).Decode(r) }

// Decode is the function [Decode] for the kinds of the table.
func (t *KindTable) Decode(r io.Reader) ([]runtime.Object, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("read the manifest: %w", err)
	}
	decoder := newManifestDecoder(t)
	var objects []runtime.Object
	for i, doc := range splitDocuments(data) {
		decoded, item, err := decoder.document(doc.text)
		if err != nil {
			return nil, &ManifestError{Document: i + 1, Line: doc.line, Item: item, Err: err}
		}
		objects = append(objects, decoded...)
	}
	return objects, nil
}

// document is one document of a manifest and the line, from 1, at which its content begins.
type document struct {
	text []byte
	line int
}

// splitDocuments parts data at the lines that begin with "---", and at the ends of JSON values that follow one another.
// Documents without content are left out.
func splitDocuments(data []byte) []document {
	var docs []document
	current := document{line: 1}
	line := 0
	for text := range bytes.Lines(data) {
		line++
		if bytes.HasPrefix(text, []byte("---")) {
			docs = append(docs, splitJSON(current)...)
			// What follows the dashes on their line belongs to the next document.
			current = document{text: bytes.TrimPrefix(text, []byte("---")), line: line}
			continue
		}
		current.text = append(current.text, text...)
	}
	return append(docs, splitJSON(current)...)
}

// splitJSON parts a document that is a row of JSON values; any other is returned as it is.
func splitJSON(doc document) []document {
	doc, ok := trimStart(doc)
	if !ok {
		return nil
	}
	if doc.text[0] != '{' {
		return []document{doc}
	}
	var docs []document
	decoder := json.NewDecoder(bytes.NewReader(doc.text))
	for begin := int64(0); ; begin = decoder.InputOffset() {
		var raw json.RawMessage
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return docs
		}
		if err != nil {
			return []document{doc} // YAML in braces, or a mistake that the YAML parser reports
		}
		before := doc.text[:begin]
		one, _ := trimStart(document{text: doc.text[begin:decoder.InputOffset()], line: doc.line + bytes.Count(before, []byte("\n"))})
		docs = append(docs, one)
	}
}

// trimStart takes off the blank lines and the comments before the content; false says that there is no content.
func trimStart(doc document) (document, bool) {
	for len(doc.text) > 0 {
		first, rest, found := bytes.Cut(doc.text, []byte("\n"))
		content := bytes.TrimSpace(first)
		if len(content) > 0 && content[0] != '#' {
			if content[0] == '{' {
				doc.text = bytes.TrimLeft(doc.text, " \t\r")
			}
			return doc, true
		}
		if !found {
			return doc, false
		}
		doc.text, doc.line = rest, doc.line+1
	}
	return doc, false
}

// manifestDecoder decodes single documents.
type manifestDecoder struct {
	kinds  *KindTable
	strict *kjson.Serializer
}

func newManifestDecoder(kinds *KindTable) manifestDecoder {
	scheme := kinds.NewScheme()
	options := kjson.SerializerOptions{Yaml: true, Strict: true}
	return manifestDecoder{kinds, kjson.NewSerializerWithOptions(kjson.DefaultMetaFactory, scheme, scheme, options)}
}

// manifestList is an object of kind List.
type manifestList struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        json.RawMessage   `json:"metadata,omitempty"`
	Items           []json.RawMessage `json:"items"`
}

// document returns the objects of one document. item is the number of the item that is wrong, 0 when there is none.
func (d manifestDecoder) document(text []byte) (objects []runtime.Object, item int, err error) {
	var meta metav1.TypeMeta
	if err := yaml.Unmarshal(text, &meta); err != nil {
		return nil, 0, err
	}
	if meta.Kind != "List" || meta.APIVersion != "v1" {
		obj, err := d.object(text)
		return []runtime.Object{obj}, 0, err
	}
	var list manifestList
	if err := yaml.UnmarshalStrict(text, &list); err != nil {
		return nil, 0, err
	}
	for i, raw := range list.Items {
		obj, err := d.object(raw)
		if err != nil {
			return nil, i + 1, err
		}
		objects = append(objects, obj)
	}
	return objects, 0, nil
}

func (d manifestDecoder) object(text []byte) (runtime.Object, error) {
	obj, kind, err := d.strict.Decode(text, nil, nil)
	switch {
	case err == nil:
		return obj, nil
	case runtime.IsMissingKind(err), runtime.IsMissingVersion(err):
		return nil, errors.New("it needs an apiVersion and a kind")
	case runtime.IsNotRegisteredError(err) && kind != nil:
		return nil, fmt.Errorf("kind %q of apiVersion %q is none that can be used here: %s",
			kind.Kind, kind.GroupVersion(), qualifiedKinds(d.kinds))
	default:
		return nil, err
	}
}

func qualifiedKinds(kinds *KindTable) string {
	var names []string
	for _, k := range kinds.Kinds() {
		names = append(names, k.Kind+" ("+k.GroupVersion().String()+")")
	}
	return "use " + strings.Join(names, ", ")
}
