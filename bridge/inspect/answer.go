package inspect

import (
	"cmp"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager"
)

// Version is the version of [NodeAnswer]. It changes when a name is removed or changes its meaning, not when one is
// added.
const Version = 1

// NodeAnswer is the answer of /v1/node. The names in JSON are stable.
type NodeAnswer struct {
	// Version is [Version].
	Version int `json:"version"`
	// Running says that the manager works, PodsComplete that all pods were added since its start.
	Running      bool `json:"running"`
	PodsComplete bool `json:"podsComplete"`
	// Counts are the lengths of the lists before any was cut.
	Counts Counts `json:"counts"`
	// Offset is the number of matching volumes before the first in Volumes.
	Offset int `json:"offset"`
	// Volumes are the volumes that match the query; first those that need attention.
	Volumes []Volume `json:"volumes"`
	// HungCalls are the calls of plugins that have not returned, the oldest first; at most 1000, and at most 16 with a
	// stack.
	HungCalls []HungCall `json:"hungCalls"`
	// Orphans are mounts, directories and loop devices without a record; at most 1000.
	Orphans []Orphan `json:"orphans"`
	// DamagedRecords are records that could not be read; at most 1000.
	DamagedRecords []DamagedRecord `json:"damagedRecords"`
	// LostData lists data that may be lost, the latest last; at most the latest 1000.
	LostData []LostData `json:"lostData"`
}

// Counts are the lengths of the lists of a [NodeAnswer] before any was cut.
type Counts struct {
	// Volumes is the number of volumes on the node, Matching the number of those that match the query.
	Volumes  int `json:"volumes"`
	Matching int `json:"matching"`
	// Attention is the number of matching volumes with a hung call, an error or an abnormal condition.
	Attention int `json:"attention"`
	// HungCalls, Orphans, DamagedRecords and LostData are the lengths of those lists.
	HungCalls      int `json:"hungCalls"`
	Orphans        int `json:"orphans"`
	DamagedRecords int `json:"damagedRecords"`
	LostData       int `json:"lostData"`
}

// Volume is one volume of one pod, from [volumemanager.VolumeStatus].
type Volume struct {
	// Pod is the pod; all its fields are empty for a volume that no pod uses.
	Pod Pod `json:"pod"`
	// Name is the name in the pod's spec, Volume the unique name.
	Name   string `json:"name"`
	Volume string `json:"volume"`
	// Plugin is the name of the plugin.
	Plugin string `json:"plugin"`
	// Phase is the phase of the volume.
	Phase string `json:"phase"`
	// Wanted is true while the pod uses it, Block for a raw device, ReadOnly if it cannot be written.
	Wanted   bool `json:"wanted"`
	Block    bool `json:"block,omitempty"`
	ReadOnly bool `json:"readOnly,omitempty"`
	// Path is the path at which it is set up, StagingPath the path at which it is staged, Device its device.
	Path        string `json:"path,omitempty"`
	StagingPath string `json:"stagingPath,omitempty"`
	Device      string `json:"device,omitempty"`
	// Error is the last real cause of the failure of its operations.
	Error string `json:"error,omitempty"`
	// Attempts is the number of failures in a row.
	Attempts int `json:"attempts,omitempty"`
	// NextTry is the time of the next attempt; absent if it waits for a change.
	NextTry time.Time `json:"nextTry,omitzero"`
	// Since is the begin of the running operation; absent if none runs.
	Since time.Time `json:"since,omitzero"`
	// Hung is true while a call for the volume hangs.
	Hung bool `json:"hung,omitempty"`
	// Conditions are its conditions; at most 32.
	Conditions []Condition `json:"conditions,omitempty"`
	// WantedSince is when the pod requested it, ResolvedSince when its volume became known.
	WantedSince   time.Time `json:"wantedSince,omitzero"`
	ResolvedSince time.Time `json:"resolvedSince,omitzero"`
	// Operations are its last operations in [History], the oldest first: those for this pod and those for no pod.
	Operations []Operation `json:"operations,omitempty"`
	// Usage is the last measurement, if the query has usage; nil if there is none.
	Usage *Usage `json:"usage,omitempty"`

	// name and pod are the unique names of the volume and the pod, as the manager has them.
	name v1.UniqueVolumeName
	pod  volume.UniquePodName
}

// Usage is a measurement of a volume. An unknown value is absent.
type Usage struct {
	// At is the time of the measurement; absent if there was none.
	At time.Time `json:"at,omitzero"`
	// CapacityBytes, UsedBytes and AvailableBytes are as [volume.Metrics] has them, as are the figures of inodes.
	CapacityBytes  *uint64 `json:"capacityBytes,omitempty"`
	UsedBytes      *uint64 `json:"usedBytes,omitempty"`
	AvailableBytes *uint64 `json:"availableBytes,omitempty"`
	Inodes         *uint64 `json:"inodes,omitempty"`
	InodesUsed     *uint64 `json:"inodesUsed,omitempty"`
	InodesFree     *uint64 `json:"inodesFree,omitempty"`
	// Error is the failure of the measurement; empty for none.
	Error string `json:"error,omitempty"`
}

// Pod names a pod.
type Pod struct {
	// Namespace, Name and UID are those of its object.
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// Condition is one condition of a volume.
type Condition struct {
	// Status is its severity, Reason one word, Message one sentence.
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Error is the cause.
	Error string `json:"error,omitempty"`
	// Since is when it was found.
	Since time.Time `json:"since,omitzero"`
}

// HungCall is a call of a plugin that was abandoned and still runs.
type HungCall struct {
	// Call is the method, Operation the operation of the call.
	Call      string `json:"call"`
	Operation string `json:"operation"`
	// Plugin, Volume and PodUID are those of the call.
	Plugin string `json:"plugin"`
	Volume string `json:"volume"`
	PodUID string `json:"podUID,omitempty"`
	// Since is when it began.
	Since time.Time `json:"since"`
	// Stack is the stack of its goroutine, if the query has stacks and the manager knows it.
	Stack string `json:"stack,omitempty"`
}

// Orphan is a mount, a directory or a loop device without a record.
type Orphan struct {
	// Path is its path, BackingFile the file of a loop device.
	Path        string `json:"path"`
	BackingFile string `json:"backingFile,omitempty"`
	// PodUID is the pod whose directory contains it.
	PodUID string `json:"podUID,omitempty"`
	// Mounted is true for a mount; FSType and Source are those of the mount.
	Mounted bool   `json:"mounted"`
	FSType  string `json:"fsType,omitempty"`
	Source  string `json:"source,omitempty"`
	// Error is the reason why it could not be rebuilt or removed.
	Error string `json:"error,omitempty"`
}

// DamagedRecord is a record that could not be read.
type DamagedRecord struct {
	// Path is the path of the record, Error its fault.
	Path  string `json:"path"`
	Error string `json:"error"`
}

// LostData says that data written to a volume may be lost.
type LostData struct {
	// Volume and PodUID identify the volume.
	Volume string `json:"volume"`
	PodUID string `json:"podUID,omitempty"`
	// At is when the loss was found.
	At time.Time `json:"at"`
	// Error is the error of the filesystem.
	Error string `json:"error"`
}

// How long texts and lists may be.
const (
	maxText       = 1 << 10
	maxStack      = 16 << 10
	maxList       = 1000
	maxConditions = 32
	maxStacks     = 16
)

// answer returns the answer to q, from copies of the manager's state.
func answer(status volumemanager.NodeStatus, hung []operationexecutor.HungCall, q query) NodeAnswer {
	matching := make([]ranked, 0, len(status.Volumes))
	attention := 0
	for i := range status.Volumes {
		s := &status.Volumes[i]
		if !q.matches(*s) {
			continue
		}
		u := urgencyOf(*s)
		if u <= failing {
			attention++
		}
		matching = append(matching, ranked{s, u})
	}
	slices.SortStableFunc(matching, func(a, b ranked) int { return cmp.Compare(a.urgency, b.urgency) })
	shown := matching[min(q.offset, len(matching)):]
	shown = shown[:min(q.limit, len(shown))]

	a := NodeAnswer{
		Version: Version, Running: status.Running, PodsComplete: status.PodsComplete,
		Counts: Counts{
			Volumes: len(status.Volumes), Matching: len(matching), Attention: attention, HungCalls: len(hung),
			Orphans: len(status.Orphans), DamagedRecords: len(status.Damaged), LostData: len(status.LostData),
		},
		Offset:         q.offset,
		Volumes:        each(shown, volumeOf),
		Orphans:        each(first(status.Orphans), orphanOf),
		DamagedRecords: each(first(status.Damaged), damagedOf),
		LostData:       each(status.LostData[max(0, len(status.LostData)-maxList):], lostOf),
		HungCalls:      each(first(hung), hungOf),
	}
	if q.stacks == withStacks {
		for i := range min(len(hung), maxStacks) {
			a.HungCalls[i].Stack = clip(hung[i].Stack(), maxStack)
		}
	}
	return a
}

// ranked is a volume and its urgency.
type ranked struct {
	*volumemanager.VolumeStatus
	urgency urgency
}

// urgency orders volumes: the smallest first.
type urgency int

const (
	hanging urgency = iota // a call does not return
	failing                // an error, or a condition that is not normal
	moving                 // on its way
	settled                // as it should be
)

func urgencyOf(s volumemanager.VolumeStatus) urgency {
	if _, hung := s.HungCall(); hung {
		return hanging
	}
	abnormal := func(c volumemanager.Condition) bool { return c.Status != volume.HealthNormal }
	if s.Err != nil || slices.ContainsFunc(s.Conditions, abnormal) {
		return failing
	}
	if s.Phase == volumemanager.PhaseMounted || s.Phase == volumemanager.PhaseReleased {
		return settled
	}
	return moving
}

func volumeOf(r ranked) Volume {
	conditions := r.Conditions[:min(len(r.Conditions), maxConditions)]
	return Volume{
		Pod:  Pod{Namespace: text(r.PodName.Namespace), Name: text(r.PodName.Name), UID: text(string(r.PodUID))},
		Name: text(r.OuterName), Volume: text(string(r.Volume)), Plugin: text(r.Plugin), Phase: text(string(r.Phase)),
		Wanted: r.Wanted, Block: r.Block, ReadOnly: r.ReadOnly,
		Path: text(r.Path), StagingPath: text(r.DeviceMountPath), Device: text(r.DevicePath),
		Error: textOf(r.Err), Attempts: r.Attempts, NextTry: r.NextTry, Since: r.Since,
		Hung: r.urgency == hanging, Conditions: each(conditions, conditionOf),
		WantedSince: r.WantedSince, ResolvedSince: r.ResolvedSince, name: r.VolumeStatus.Volume, pod: volume.UniquePodName(r.PodUID),
	}
}

func usageOf(s volumemanager.VolumeStats) *Usage {
	return &Usage{
		At: s.Time, CapacityBytes: s.CapacityBytes, UsedBytes: s.UsedBytes, AvailableBytes: s.AvailableBytes,
		Inodes: s.Inodes, InodesUsed: s.InodesUsed, InodesFree: s.InodesFree, Error: textOf(s.Err),
	}
}

func conditionOf(c volumemanager.Condition) Condition {
	return Condition{
		Status: text(string(c.Status)), Reason: text(c.Reason), Message: text(c.Message), Error: textOf(c.Err), Since: c.Since,
	}
}

func hungOf(h operationexecutor.HungCall) HungCall {
	return HungCall{
		Call: text(h.Call), Operation: text(string(h.Operation.Kind)), Plugin: text(h.Operation.PluginName),
		Volume: text(string(h.Operation.VolumeName)), PodUID: text(string(h.Operation.PodName)), Since: h.Since,
	}
}

func orphanOf(o volumemanager.Orphan) Orphan {
	return Orphan{
		Path: text(o.Path), BackingFile: text(o.BackingFile), PodUID: text(string(o.PodUID)), Mounted: o.Mounted,
		FSType: text(o.FSType), Source: text(o.Source), Error: textOf(o.Err),
	}
}

func damagedOf(d volumemanager.DamagedRecord) DamagedRecord {
	return DamagedRecord{Path: text(d.Path), Error: textOf(d.Err)}
}

func lostOf(d volumemanager.LostData) LostData {
	return LostData{Volume: text(string(d.Volume)), PodUID: text(string(d.PodUID)), At: d.At, Error: textOf(d.Err)}
}

// each returns what f makes of each value; never nil, so that JSON has a list.
func each[T, U any](values []T, f func(T) U) []U {
	made := make([]U, 0, len(values))
	for _, v := range values {
		made = append(made, f(v))
	}
	return made
}

func first[T any](values []T) []T { return values[:min(len(values), maxList)] }

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return text(err.Error())
}

func text(s string) string { return clip(s, maxText) }

// clip returns s as valid UTF-8 of at most size bytes; the end of a text that was cut is an ellipsis.
func clip(s string, size int) string {
	const ellipsis = "…"
	if len(s) <= size {
		if s = strings.ToValidUTF8(s, "�"); len(s) <= size {
			return s
		}
	}
	s = strings.ToValidUTF8(s[:size], "�")
	end := 0
	for i := range s {
		if i > size-len(ellipsis) {
			break
		}
		end = i
	}
	return s[:end] + ellipsis
}
