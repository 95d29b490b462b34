package browsertest

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/bridge/inspect"
	"github.com/volumekit/volumekit/controller/attachdetach"
	"github.com/volumekit/volumekit/controller/persistentvolume"
	"github.com/volumekit/volumekit/operationexecutor"
)

// requireInOrder requires that a page has all the texts, in this order.
func requireInOrder(t *testing.T, page string, parts ...string) {
	t.Helper()
	rest := page
	for _, part := range parts {
		_, after, found := strings.Cut(rest, part)
		require.True(t, found, "%q is not where it should be in:\n%s", part, page)
		rest = after
	}
}

// what the page of a node with a volume in each state says, from top to bottom.
var states = []string{
	"3 of 4 volumes need attention", "1 hung call", "JSON", "Data that may be lost", "input/output error", "Hung calls", "of example.com/hangs", "Show stacks",
	"Damaged records", "the checksum is another", "Volumes that need attention", "hangs", "shop/hung",
	"shop/refused", "the disk is attached elsewhere " + hostile, "in a row; next try", "unresolved", "shop/unbound", `claim "shop/missing"`,
	"Other volumes", "mounted", "shop/well", "Orphans", "/var/lib/agent/pods/gone/volumes",
}

func TestStatesAreReadFromThePage(t *testing.T) {
	ctx := openBrowser(t)
	n := newNode(t)
	n.addAll(t)
	t.Run("with JavaScript", func(t *testing.T) {
		do(t, ctx, chromedp.Navigate(n.url), chromedp.WaitVisible(chromedp.CSS("#content")))
		awaitText(t, ctx, "Live.")
		requireInOrder(t, text(t, ctx), states...)
		draw(t, ctx, "inspect-node.png")
		assert.Zero(t, evaluate[int](t, ctx, "document.images.length"), "hostile texts are texts")
		assert.NotEqual(t, "run", evaluate[string](t, ctx, "document.title"))
	})
	t.Run("without", func(t *testing.T) {
		_, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		require.NoError(t, err)
		do(t, ctx, chromedp.Navigate(n.url))
		requireInOrder(t, text(t, ctx), states...)
		assert.NotContains(t, text(t, ctx), "Live.")
		do(t, ctx, chromedp.SetValue(chromedp.CSS(`select[name="phase"]`), "mounted"), chromedp.Click(chromedp.CSS("form button")))
		awaitTrue(t, ctx, `location.search.includes("phase=mounted")`)
		awaitText(t, ctx, "No volume of 1 needs attention")
		do(t, ctx, chromedp.Click(chromedp.CSS("#usage")))
		awaitTrue(t, ctx, `location.search.includes("usage=1")`)
		awaitText(t, ctx, "measured")
	})
}

func TestAPageUpdatesItself(t *testing.T) {
	ctx := openBrowser(t)
	n := newNode(t)
	n.addAll(t)
	do(t, ctx, chromedp.Navigate(n.url), chromedp.SetValue(chromedp.CSS(`input[name="pod"]`), "half a na"), chromedp.Click(chromedp.CSS("details summary")))
	before := evaluate[string](t, ctx, `document.querySelector("details[open]").id`)
	require.NotEmpty(t, before)

	n.release()
	awaitText(t, ctx, "2 of 4 volumes need attention")
	awaitTrue(t, ctx, `document.title.startsWith("2 need attention")`)
	n.add(t, "late", inline("fake.example.com"))
	awaitText(t, ctx, "shop/late")
	require.NoError(t, n.RemovePod(types.UID("uid-refused")))
	awaitText(t, ctx, "1 of 4 volumes need attention")

	assert.Equal(t, "half a na", evaluate[string](t, ctx, `document.querySelector("input[name=pod]").value`), "what is being typed stays")
	assert.True(t, evaluate[bool](t, ctx, `document.getElementById(`+quote(before)+`).open`), "a time line that is read stays open")
	assert.Contains(t, evaluate[string](t, ctx, `document.getElementById(`+quote(before)+`).innerText`), "SetUp")
}

func TestAPageSaysWhenItsServerIsGone(t *testing.T) {
	ctx := openBrowser(t)
	var sources cluster
	server := httptest.NewServer(inspect.NewCluster(sources.get))
	do(t, ctx, chromedp.Navigate(server.URL))
	awaitText(t, ctx, "Live.")
	server.CloseClientConnections()
	server.Listener.Close()
	awaitText(t, ctx, "Connection lost. This is the last known state.")
	assert.Contains(t, text(t, ctx), "shop/early", "and what was known stays")
	do(t, ctx, chromedp.Navigate("about:blank"))
	server.Close()
}

// The page also reports a server that accepts requests and does not answer them.
func TestAPageSaysWhenItsServerHangs(t *testing.T) {
	ctx := openBrowser(t)
	var sources cluster
	var hangs atomic.Bool
	page := inspect.NewCluster(sources.get)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hangs.Load() && r.URL.Path == "/" {
			<-r.Context().Done()
			return
		}
		page.ServeHTTP(w, r)
	}))
	do(t, ctx, chromedp.Navigate(server.URL))
	awaitText(t, ctx, "Live.")
	hangs.Store(true)
	sources.bound.Store(true) // a change, after which the page is read again
	awaitText(t, ctx, "Connection lost. This is the last known state.")
	hangs.Store(false)
	awaitText(t, ctx, "0 claims wait")
	do(t, ctx, chromedp.Navigate("about:blank"))
	server.Close()
}

// A user can read a page with the keyboard alone.
func TestThePageIsReadWithTheKeyboard(t *testing.T) {
	ctx := openBrowser(t)
	n := newNode(t)
	n.addAll(t)
	do(t, ctx, chromedp.Navigate(n.url))
	awaitText(t, ctx, "Live.")
	var met []string
	for range 30 {
		do(t, ctx, chromedp.KeyEvent(kb.Tab))
		at := evaluate[string](t, ctx, `document.activeElement.name || document.activeElement.innerText`)
		if met = append(met, at); at == "time line" {
			break
		}
	}
	requireInOrder(t, strings.Join(met, "\n"), "JSON", "text", "pod", "plugin", "phase", "Filter", "Show stacks", "time line")
	assert.NotEqual(t, "none", evaluate[string](t, ctx, `getComputedStyle(document.activeElement).outlineStyle`), "it is seen where the keyboard is")
	do(t, ctx, chromedp.KeyEvent(kb.Enter))
	line := evaluate[string](t, ctx, `document.activeElement.parentElement.innerText`)
	requireInOrder(t, line, "wanted", "resolved +", "took", "SetUp has not returned and was abandoned")
	n.add(t, "late", inline("fake.example.com"))
	awaitText(t, ctx, "shop/late")
	assert.Equal(t, "time line", evaluate[string](t, ctx, `document.activeElement.innerText`), "an update takes the keyboard nowhere else")
}

func TestThePageFitsNarrowScreensAndTheDark(t *testing.T) {
	ctx := openBrowser(t)
	n := newNode(t)
	n.addAll(t)
	for _, width := range []int64{320, 1280} {
		do(t, ctx, chromedp.EmulateViewport(width, 800), chromedp.Navigate(n.url))
		assert.LessOrEqual(t, evaluate[int64](t, ctx, `document.documentElement.scrollWidth`), width, "nothing is to the right of the screen")
		requireInOrder(t, text(t, ctx), states...)
	}
	for scheme, dark := range map[string]bool{"light": false, "dark": true} {
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		require.NoError(t, err)
		do(t, ctx, chromedp.Navigate(n.url))
		background, foreground := brightness(t, ctx, "backgroundColor"), brightness(t, ctx, "color")
		assert.Equal(t, dark, background < foreground, scheme)
		assert.Greater(t, max(background, foreground)-min(background, foreground), 400.0, scheme)
	}
}

// brightness returns the sum of red, green and blue of a color of the page, of at most 765.
func brightness(t *testing.T, ctx context.Context, property string) float64 {
	t.Helper()
	return evaluate[float64](t, ctx, `getComputedStyle(document.body).`+property+`.match(/\d+/g).slice(0, 3).map(Number).reduce((a, b) => a + b)`)
}

// cluster is a cluster whose claims are bound when bound is set.
type cluster struct{ bound atomic.Bool }

func (c *cluster) get() inspect.ClusterSources {
	holder := "agent-1"
	return inspect.ClusterSources{
		Attachments: c, Claims: c,
		Leases: []*coordinationv1.Lease{{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "volumes"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}}},
	}
}

func (c *cluster) Status() []attachdetach.AttachmentStatus {
	return []attachdetach.AttachmentStatus{
		{Volume: "example.com/disk/used", Node: "n1", Phase: attachdetach.PhaseInUse, Wanted: true},
		{Volume: "example.com/disk/refused", Node: "n2", Phase: attachdetach.PhaseRequested, Wanted: true, Err: errors.New(hostile), Attempts: 3, NextTry: time.Now().Add(time.Minute)},
		{Volume: "example.com/disk/forced", Node: "n3", Phase: attachdetach.PhaseFenced, DetachRequestedSince: time.Now()},
	}
}

func (c *cluster) Hung() []operationexecutor.HungCall { return nil }

func (c *cluster) Pending() []persistentvolume.PendingClaim {
	if c.bound.Load() {
		return nil
	}
	return []persistentvolume.PendingClaim{{
		Claim: types.NamespacedName{Namespace: "shop", Name: "early"}, Reason: "ProvisioningFailed", Message: "no volume could be made: it is tried again",
		Err: errors.New("the pool is full"), Since: time.Now().Add(-time.Hour),
	}}
}

func TestThePageOfACluster(t *testing.T) {
	ctx := openBrowser(t)
	var sources cluster
	server := httptest.NewServer(inspect.NewCluster(sources.get))
	do(t, ctx, chromedp.Navigate(server.URL))
	awaitText(t, ctx, "Live.")
	requireInOrder(t, text(t, ctx), "1 claim waits, 2 of 3 attachments need attention", "1 volume taken by force", "Claims that wait", "shop/early", "(1h0m",
		"the pool is full", "Attachments that need attention", "refused on n2", hostile, "failed 3 times", "fenced", "forced on n3", "Other attachments", "in use", "n1",
		"Leaders", "kube-system/volumes", "agent-1")
	draw(t, ctx, "inspect-cluster.png")
	assert.Zero(t, evaluate[int](t, ctx, "document.images.length"))
	sources.bound.Store(true)
	awaitText(t, ctx, "0 claims wait")
	do(t, ctx, chromedp.Navigate("about:blank")) // The stream ends, for which Close waits.
	server.Close()
}
