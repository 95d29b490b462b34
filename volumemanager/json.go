package volumemanager

import "encoding/json"

// This file writes what the manager tells of as JSON: an error as its text, which package json would write as {}.

// MarshalJSON writes Err as its text, and leaves it out when there is none.
func (s VolumeStatus) MarshalJSON() ([]byte, error) {
	type plain VolumeStatus
	return json.Marshal(struct {
		plain
		Err string `json:",omitempty"`
	}{plain(s), textOf(s.Err)})
}

// MarshalJSON writes Err as its text, and leaves it out when there is none.
func (s VolumeStats) MarshalJSON() ([]byte, error) {
	type plain VolumeStats
	return json.Marshal(struct {
		plain
		Err string `json:",omitempty"`
	}{plain(s), textOf(s.Err)})
}

// MarshalJSON writes Err as its text, and leaves it out when there is none.
func (c Condition) MarshalJSON() ([]byte, error) {
	type plain Condition
	return json.Marshal(struct {
		plain
		Err string `json:",omitempty"`
	}{plain(c), textOf(c.Err)})
}

// MarshalJSON writes Err as its text, and leaves it out when there is none.
func (d DamagedRecord) MarshalJSON() ([]byte, error) {
	type plain DamagedRecord
	return json.Marshal(struct {
		plain
		Err string `json:",omitempty"`
	}{plain(d), textOf(d.Err)})
}

// MarshalJSON writes Err as its text, and leaves it out when there is none.
func (o Orphan) MarshalJSON() ([]byte, error) {
	type plain Orphan
	return json.Marshal(struct {
		plain
		Err string `json:",omitempty"`
	}{plain(o), textOf(o.Err)})
}

// MarshalJSON writes Err as its text, and leaves it out when there is none.
func (d LostData) MarshalJSON() ([]byte, error) {
	type plain LostData
	return json.Marshal(struct {
		plain
		Err string `json:",omitempty"`
	}{plain(d), textOf(d.Err)})
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
