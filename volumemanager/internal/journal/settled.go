package journal

import (
	"context"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/volumekit/volumekit/operationexecutor"
	"github.com/volumekit/volumekit/volume"
	"github.com/volumekit/volumekit/volumemanager/internal/mountwatch"
)

// Settled has the arguments of a successful set-up. A later manager uses the set-up as it is only if they are the same.
type Settled struct {
	// User, Group and GroupPolicy are the arguments for the ownership of the content.
	User        string `json:"fsUser,omitempty"`
	Group       string `json:"fsGroup,omitempty"`
	GroupPolicy string `json:"fsGroupChangePolicy,omitempty"`
	// Size is the requested size.
	Size string `json:"size,omitempty"`
	// Options are the mount options, joined.
	Options string `json:"options,omitempty"`
	// ReadOnly says that the filesystem of the mount is read-only.
	ReadOnly bool `json:"readOnlyFilesystem,omitempty"`
}

func settledOf(args volume.MounterArgs, found seenMount) Settled {
	s := Settled{User: numberOf(args.FsUser), Group: numberOf(args.FsGroup), Options: found.options, ReadOnly: found.readOnly}
	if args.FSGroupChangePolicy != nil {
		s.GroupPolicy = string(*args.FSGroupChangePolicy)
	}
	if args.DesiredSize != nil {
		s.Size = args.DesiredSize.String()
	}
	return s
}

func numberOf(id *int64) string {
	if id == nil {
		return ""
	}
	return strconv.FormatInt(*id, 10)
}

// settled returns the arguments of the successful set-up of an intent; nil if the next manager must set it up again.
func (j *Journal) settled(r *Record, intent operationexecutor.Intent, found seenMount) *Settled {
	if intent.SetUpArgs == nil || found.Unique == 0 || !j.isReusable(intent.Spec) || !j.holdsSpec(r, intent) {
		return nil
	}
	s := settledOf(*intent.SetUpArgs, found)
	return &s
}

// holdsSpec reports whether the record has the whole spec of an intent. The spec on record is that of the volume's first pod; another pod
// may have got a later one.
func (j *Journal) holdsSpec(r *Record, intent operationexecutor.Intent) bool {
	public := j.options.Plugins.PublicKeys(intent.PluginName)
	if !intent.Spec.IsPublic(public) {
		return false
	}
	if r.encoded == intent.Spec {
		return true
	}
	spec, err := encodeSpec(intent.Spec, public)
	return err == nil && slices.Equal(spec, r.Spec)
}

// settle records the arguments of an intent's set-up, and reports whether that changed r.
func (r *Record) settle(intent operationexecutor.Intent, s *Settled) bool {
	p := r.Pods[intent.PodUID]
	if p == nil || partOf(intent) != partSetUp || equality.Semantic.DeepEqual(p.Settled, s) {
		return false
	}
	next := *p
	next.Settled = s
	r.Pods[intent.PodUID] = &next
	return true
}

// unsettle removes the arguments before a set-up begins, and reports whether that changed r. A teardown need not do that: until it has
// unmounted the volume, the set-up is unchanged.
func (r *Record) unsettle(intent operationexecutor.Intent) bool {
	return intent.Kind == operationexecutor.OpMount && r.settle(intent, nil)
}

// isReusable reports whether the volume needs no set-up after a restart, by its plugin's answer.
func (j *Journal) isReusable(spec *volume.Spec) bool {
	if spec == nil {
		return false
	}
	yes, err := j.options.Plugins.CanReuse(spec)
	return yes && err == nil
}

// WasMadeWith reports whether a successful set-up had the same arguments.
func (s *SetUp) WasMadeWith(args volume.MounterArgs) bool {
	return s.Settled != nil && settledOf(args, seenMount{options: s.Settled.Options, readOnly: s.Settled.ReadOnly}) == *s.Settled
}

// lookTimeout bounds the lookup of the mount of a record.
const lookTimeout = 10 * time.Second

// IsMounted reports whether the mount of a successful set-up is the uppermost one at its path and has the same options. The mount must have
// an id that no other mount ever gets.
func (j *Journal) IsMounted(ctx context.Context, known *SetUp) bool {
	if j.options.Mounts == nil || known.Settled == nil || known.Mount.Unique == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	found, err := j.options.Mounts.Lookup(ctx, known.Path)
	if err != nil || found.UniqueID != known.Mount.Unique || mountwatch.HasFailed(found) {
		return false
	}
	now := seenMountOf(found)
	return now.options == known.Settled.Options && now.readOnly == known.Settled.ReadOnly
}
