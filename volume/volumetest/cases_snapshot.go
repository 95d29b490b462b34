package volumetest

import (
	"slices"

	"github.com/volumekit/volumekit/volume"
)

func snapshotCases() []Case {
	return slices.Concat(snapshotIdentityCases(), snapshotContentCases(), snapshotGroupCases(), snapshotEndCases())
}

// capSnapshot is what every case of the group needs.
const capSnapshot = volume.CapProvision | volume.CapDelete | volume.CapSnapshot

func snapshotIdentityCases() []Case {
	return []Case{
		{
			Rule: "N1", Group: "snapshot", Name: "what is said of it",
			Sentence: "CreateSnapshot MUST return a handle, the name of the source volume, a creation time and no restore size above the capacity of the source. GetSnapshot MUST return the same, also by a new value of the plugin.",
			Needs:    capSnapshot, run: snapshotTellsItsSource,
		},
		{
			Rule: "N2", Group: "snapshot", Name: "make twice",
			Sentence: "A second CreateSnapshot of the same name and source, also by a new value of the plugin, MUST return the same snapshot, MUST leave its content unchanged and MUST make no other.",
			Needs:    capSnapshot, run: snapshotTwice,
		},
		{
			Rule: "N3", Group: "snapshot", Name: "one name, two sources",
			Sentence: "CreateSnapshot of a name that exists with another source MUST fail with a SnapshotSourceError, also by a new value of the plugin, and MUST leave the snapshot unchanged.",
			Needs:    capSnapshot, run: snapshotOfAnotherSource,
		},
		{
			Rule: "N4", Group: "snapshot", Name: "what does not exist",
			Sentence: "CreateSnapshot of a volume that was deleted, GetSnapshot of a snapshot that does not exist, and Provision from one, MUST fail. The error of the first two MUST match ErrNotFound.",
			Needs:    capSnapshot, run: snapshotOfNothing,
		},
		{
			Rule: "N5", Group: "snapshot", Name: "unknown parameter",
			Sentence: "CreateSnapshot MUST refuse, with an error, a parameter that the plugin does not know.",
			Needs:    capSnapshot, run: unknownSnapshotParameter,
		},
		{
			Rule: "N6", Group: "snapshot", Name: "list",
			Sentence: "ListSnapshots MUST list a snapshot after CreateSnapshot and MUST NOT list it after DeleteSnapshot, also by a new value of the plugin.",
			Needs:    capSnapshot | volume.CapListSnapshots, run: snapshotIsListed,
		},
	}
}

func snapshotContentCases() []Case {
	return []Case{
		{
			Rule: "N7", Group: "snapshot", Name: "bytes of that moment",
			Sentence: "A volume restored from a snapshot MUST have what was synced before CreateSnapshot, and MUST NOT have what was written after it. An error that matches ErrInUse MAY demand a source that is attached nowhere.",
			Needs:    capSnapshot, run: snapshotIsOfItsMoment,
		},
		{
			Rule: "N8", Group: "snapshot", Name: "nothing is shared",
			Sentence: "What is written to a restored volume MUST NOT appear in the snapshot, in its source or in another restored volume. All MUST be usable on one node at the same time.",
			Needs:    capSnapshot, run: restoredVolumesShareNothing,
		},
		{
			Rule: "N9", Group: "snapshot", Name: "source is deleted",
			Sentence: "Delete of the source MUST leave its snapshots and their content unchanged. It MAY fail with an error that matches ErrInUse while there are snapshots.",
			Needs:    capSnapshot, run: snapshotOutlivesItsSource,
		},
		{
			Rule: "N10", Group: "snapshot", Name: "restore larger",
			Sentence: "A restored volume MUST have the capacity that its claim requests, by statfs at least three quarters of it, and the content of the snapshot. A second Provision of the same PVName MUST return the same volume with its content unchanged.",
			Needs:    capSnapshot, run: restoreLarger,
		},
		{
			Rule: "N11", Group: "snapshot", Name: "restore smaller",
			Sentence: "Provision of a volume smaller than the restore size of its snapshot MUST fail with a RestoreSizeError and MUST make nothing.",
			Needs:    capSnapshot, run: restoreSmaller,
		},
	}
}

func snapshotGroupCases() []Case {
	const group = capSnapshot | volume.CapGroupSnapshot
	return []Case{
		{
			Rule: "N12", Group: "snapshot", Name: "group at one moment",
			Sentence: "If a write to one volume is in a group, what was synced to the other volumes before that write began MUST be in the group too.",
			Needs:    group, run: groupIsOfOneMoment,
		},
		{
			Rule: "N13", Group: "snapshot", Name: "group twice",
			Sentence: "A second CreateGroupSnapshot of the same name and sources, in any order and also by a new value of the plugin, MUST return the same group. With other sources it MUST fail with a SnapshotSourceError. GetGroupSnapshot MUST return the same group.",
			Needs:    group, run: groupTwice,
		},
		{
			Rule: "N14", Group: "snapshot", Name: "group is deleted",
			Sentence: "DeleteGroupSnapshot MUST delete the snapshots of the group and no other, and MUST succeed again. If it is given a snapshot of another group, it MUST fail and MUST delete nothing.",
			Needs:    group, run: groupIsDeleted,
		},
	}
}

func snapshotEndCases() []Case {
	return []Case{
		{
			Rule: "N15", Group: "snapshot", Name: "delete twice",
			Sentence: "DeleteSnapshot MUST succeed, also for a handle that never existed, and MUST succeed again, also by a new value of the plugin. It MUST leave the source, other snapshots and restored volumes unchanged.",
			Needs:    capSnapshot, run: deleteSnapshotTwice,
		},
		{
			Rule: "N16", Group: "snapshot", Name: "delete while it is read",
			Sentence: "DeleteSnapshot beside a Provision from the snapshot MUST do no harm: the volume MUST have the whole content, or Provision MUST fail. DeleteSnapshot MAY fail with an error that matches ErrInUse while the snapshot is read or volumes depend on it.",
			Needs:    capSnapshot, run: deleteWhileRestoring,
		},
		{
			Rule: "N17", Group: "snapshot", Name: "cancelled",
			Sentence: "CreateSnapshot and DeleteSnapshot whose context ends, before or during the call, MUST do no harm: the next call, also of a new value of the plugin, MUST finish the work. A snapshot that is listed or returned as ready MUST be whole.",
			Needs:    capSnapshot, run: cancelledSnapshots,
		},
	}
}
