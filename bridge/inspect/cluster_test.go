package inspect

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/controller/attachdetach"
	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/operationexecutor"
)

var (
	_ AttachController = (*attachdetach.Controller)(nil)
	_ ClaimController  = (*persistentvolume.Controller)(nil)
)

// controllers are controllers whose state does not change.
type controllers struct {
	attachments []attachdetach.AttachmentStatus
	claims      []persistentvolume.PendingClaim
	hung        []operationexecutor.HungCall
	leases      []*coordinationv1.Lease
}

func (c *controllers) Status() []attachdetach.AttachmentStatus { return c.attachments }
func (c *controllers) Hung() []operationexecutor.HungCall      { return c.hung }
func (c *controllers) Pending() []persistentvolume.PendingClaim {
	return append([]persistentvolume.PendingClaim(nil), c.claims...)
}

func (c *controllers) sources() ClusterSources {
	return ClusterSources{Attachments: c, Claims: c, Leases: c.leases}
}

func aCluster() *controllers {
	holder, seconds := "agent-1", int32(15)
	attached := func(node types.NodeName, name string, phase attachdetach.AttachmentPhase) attachdetach.AttachmentStatus {
		return attachdetach.AttachmentStatus{Node: node, Volume: v1.UniqueVolumeName("example.com/disk/" + name), Phase: phase, Wanted: true}
	}
	refused := attached("n2", "refused", attachdetach.PhaseRequested)
	refused.Err, refused.Attempts, refused.NextTry = errors.New("the disk is elsewhere"), 2, began
	forced := attached("n3", "forced", attachdetach.PhaseFenced)
	forced.DetachRequestedSince = began
	return &controllers{
		attachments: []attachdetach.AttachmentStatus{
			attached("n1", "used", attachdetach.PhaseInUse), attached("n1", "going", attachdetach.PhaseDetaching), refused, forced,
		},
		claims: []persistentvolume.PendingClaim{
			{Claim: types.NamespacedName{Namespace: "shop", Name: "late"}, Reason: "FailedBinding", Message: "no class is set", Since: began.Add(time.Hour)},
			{Claim: types.NamespacedName{Namespace: "shop", Name: "early"}, Reason: "ProvisioningFailed", Message: "it is tried again", Err: errors.New("pool full"), Since: began},
		},
		hung:   []operationexecutor.HungCall{{Operation: operationexecutor.OperationInfo{Kind: operationexecutor.OpAttach, PluginName: "example.com/disk"}, Call: "Attach", Since: began}},
		leases: []*coordinationv1.Lease{{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "volumes"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds}}, {}},
	}
}

func ask(t testing.TB, sources func() ClusterSources, target string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	NewCluster(sources).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil))
	return w
}

func readCluster(t testing.TB, c *controllers, target string) ClusterAnswer {
	t.Helper()
	w := ask(t, c.sources, target)
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	var a ClusterAnswer
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &a))
	return a
}

func TestAClusterSaysWhatWaitsAndWhy(t *testing.T) {
	a := readCluster(t, aCluster(), "/v1/cluster")
	assert.Equal(t, ClusterCounts{Claims: 2, Attachments: 4, Matching: 4, Attention: 2, Forced: 1, HungCalls: 1, Leases: 2}, a.Counts)
	assert.True(t, a.Leading)
	var phases []string
	for _, one := range a.Attachments {
		phases = append(phases, one.Phase)
	}
	assert.Equal(t, []string{"requested", "fenced", "detaching", "in use"}, phases, "failed or taken by force, on its way, as it should be")
	assert.Equal(t, "the disk is elsewhere", a.Attachments[0].Error)
	assert.Equal(t, "example.com/disk", a.Attachments[0].Plugin)
	assert.Equal(t, Claim{Namespace: "shop", Name: "early", Reason: "ProvisioningFailed", Message: "it is tried again", Error: "pool full", Since: began}, a.Claims[0],
		"the claim that waits longest comes first")
	assert.Equal(t, Lease{Namespace: "kube-system", Name: "volumes", Holder: "agent-1", Seconds: 15}, a.Leases[1])

	for target, want := range map[string]int{"?node=n1": 2, "?plugin=example.com/disk": 4, "?phase=fenced": 1, "?node=n1&phase=in+use": 1, "?offset=3": 1, "?limit=2": 2, "?offset=9": 0} {
		assert.Len(t, readCluster(t, aCluster(), "/v1/cluster"+target).Attachments, want, target)
	}
	for _, q := range []string{"limit=0", "pod=a", "stacks=1", "usage=1", "offset=-1"} {
		assert.Equal(t, http.StatusBadRequest, ask(t, aCluster().sources, "/v1/cluster?"+q).Code, q)
	}
}

func TestTheViewsOfAClusterAgree(t *testing.T) {
	table := ask(t, aCluster().sources, "/v1/cluster.txt").Body.String()
	assert.Contains(t, table, "2 claims wait; 4 of 4 attachments match, 2 need attention, 1 are taken by force; 1 hung calls\n")
	assert.Contains(t, table, "CLAIM shop/early waits since 2026-01-02T03:04:05Z: ProvisioningFailed: it is tried again: pool full\n")
	assert.Contains(t, table, "    error: the disk is elsewhere\n    failed 2 times in a row; next try: 2026-01-02T03:04:05Z\n")
	body := ask(t, aCluster().sources, "/?limit=3").Body.String()
	for _, part := range []string{
		"2 claims wait, 2 of 4 attachments need attention", "1 volume taken by force, 1 hung call", "Hung calls", "Claims that wait", "shop/early", "pool full", "shop/late",
		"Attachments that need attention", "the disk is elsewhere", "fenced", "no pod wants it since", "Other attachments", "detaching", `rel="next"`, "Leaders", "agent-1",
	} {
		_, after, found := strings.Cut(body, part)
		require.True(t, found, part)
		body = after
	}
}

// The answer of a process that does not lead says so, and has no state of controllers.
func TestAProcessThatDoesNotLeadShowsWhoDoes(t *testing.T) {
	c := aCluster()
	sources := func() ClusterSources { return ClusterSources{Leases: c.leases} }
	for _, target := range []string{"/", "/v1/cluster.txt"} {
		body := ask(t, sources, target).Body.String()
		assert.Contains(t, body, "This process does not lead", target)
		assert.Contains(t, body, "agent-1", target)
	}
	assert.JSONEq(t, `{"version":1,"leading":false,"counts":{"claims":0,"attachments":0,"matching":0,"attention":0,"forced":0,"hungCalls":0,"leases":0},
		"claims":[],"offset":0,"attachments":[],"hungCalls":[],"leases":[]}`, ask(t, func() ClusterSources { return ClusterSources{} }, "/v1/cluster").Body.String())
}

func TestAnOpenPageOfAClusterIsToldOfChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		states := []*controllers{aCluster(), aCluster()}
		states[1].claims = nil
		now := make(chan *controllers, 1)
		now <- states[0]
		sources := func() ClusterSources {
			c := <-now
			now <- c
			return c.sources()
		}
		b := open(t, NewCluster(sources), "/v1/events")
		require.True(t, b.event())
		began := time.Now()
		<-now
		now <- states[1]
		require.True(t, b.event())
		assert.LessOrEqual(t, time.Since(began), pollInterval)
		b.close()
		<-b.served
	})
}

// FuzzCluster tries any names of objects and any requests.
func FuzzCluster(f *testing.F) {
	f.Add("<script>", "node=a")
	f.Add("a\nCLAIM \x1b[2J", "limit=1&offset=0")
	f.Add("\xff\u202e", "phase=%zz")
	f.Add(strings.Repeat("x", 2*maxText), "plugin=;")
	f.Fuzz(func(t *testing.T, name, rawQuery string) {
		hostile, plain := aCluster(), aCluster()
		for c, s := range map[*controllers]string{hostile: name, plain: "x"} {
			one := &c.attachments[2]
			one.Node, one.Volume, one.Err, one.DevicePath = types.NodeName(s), v1.UniqueVolumeName(s), errors.New("about "+s), s
			c.claims[0].Claim, c.claims[0].Message, c.claims[0].Reason = types.NamespacedName{Namespace: s, Name: s}, s, s
			c.hung[0].Call, c.leases[0].Name, c.leases[0].Spec.HolderIdentity = s, s, &s
		}
		plain.leases[0].Name = "x"
		for _, target := range []string{"/v1/cluster", "/", "/v1/cluster.txt"} {
			w := ask(t, hostile.sources, target)
			require.Equal(t, http.StatusOK, w.Code)
			require.True(t, utf8.Valid(w.Body.Bytes()))
			require.Less(t, w.Body.Len(), 256<<10)
			body, want := w.Body.String(), ask(t, plain.sources, target).Body.String()
			switch target {
			case "/":
				require.Equal(t, strings.Count(want, "<"), strings.Count(body, "<"))
			case "/v1/cluster":
				require.True(t, json.Valid(w.Body.Bytes()))
				require.NotContains(t, body, "<")
			default:
				require.Equal(t, strings.Count(want, "\n"), strings.Count(body, "\n"), "no name begins a line")
				require.NotContains(t, body, "\x1b")
			}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
			r.URL.RawQuery = rawQuery
			w = httptest.NewRecorder()
			NewCluster(hostile.sources).ServeHTTP(w, r)
			require.Contains(t, []int{http.StatusOK, http.StatusBadRequest}, w.Code)
		}
	})
}
