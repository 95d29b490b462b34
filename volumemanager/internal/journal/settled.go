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

// Settled is how a set-up was made that has succeeded: what must be the same when it is to be used as it is.
type Settled struct {
	// User, Group and GroupPolicy say whom the content was given to.
	User        string `json:"fsUser,omitempty"`
	Group       string `json:"fsGroup,omitempty"`
	GroupPolicy string `json:"fsGroupChangePolicy,omitempty"`
	// Size is the size that was asked for.
	Size string `json:"size,omitempty"`
	// Options are those of the mount, joined.
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

// settled returns how the set-up of an intent that has succeeded was made; nil when the next start is to set it up again.
func (j *Journal) settled(r *Record, intent operationexecutor.Intent, found seenMount) *Settled {
	if intent.SetUpArgs == nil || found.Unique == 0 || !j.isReusable(intent.Spec) || !j.holdsSpec(r, intent) {
		return nil
	}
	s := settledOf(*intent.SetUpArgs, found)
	return &s
}

// holdsSpec reports whether the record holds the spec of an intent, and all of it. The spec on record is that of the volume's
// first pod; another pod may have been given a later one.
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

// settle enters how the set-up of an intent was made, and reports whether that changed r.
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

// unsettle says that a set-up is about to be made, or made anew, and reports whether that changed r. A teardown need not say
// so: until it has unmounted the volume, the set-up is what it was.
func (r *Record) unsettle(intent operationexecutor.Intent) bool {
	return intent.Kind == operationexecutor.OpMount && r.settle(intent, nil)
}

// isReusable reports whether the plugin of a volume says that the volume needs no set-up after a restart.
func (j *Journal) isReusable(spec *volume.Spec) bool {
	if spec == nil {
		return false
	}
	yes, err := j.options.Plugins.CanReuse(spec)
	return yes && err == nil
}

// WasMadeWith reports whether a set-up that has succeeded was made with the same arguments.
func (s *SetUp) WasMadeWith(args volume.MounterArgs) bool {
	return s.Settled != nil && settledOf(args, seenMount{options: s.Settled.Options, readOnly: s.Settled.ReadOnly}) == *s.Settled
}

// lookTimeout bounds the look at the mount of a record.
const lookTimeout = 10 * time.Second

// IsMounted reports whether the mount of a set-up that has succeeded is the uppermost one at its path, with the options that it had.
// It must have an id that no other mount ever gets.
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
