package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/volumekit/volumekit/store"
	"github.com/volumekit/volumekit/volume"
)

// errAsked says that an item waits for what the store says of the pods that use a claim. The answer wakes it.
var errAsked = errors.New("the pods are being read from the store")

// users are the questions, which pods use a claim, that memory must not answer: what is asked while the pods of a namespace
// are being read is answered by the next reading, all at once. A thousand claims that go cost two lists and not a thousand.
// Its methods may be called from several goroutines at once.
type users struct {
	mu      sync.Mutex // held over nothing that waits
	asked   map[string]map[item]question
	answers map[item]answer
}

// question is asked for the object of an item that has the UID: who uses the claim?
type question struct {
	uid   types.UID
	claim types.NamespacedName
}

// answer is the pods that refer to the claim, as they were in the store at some time after the question.
type answer struct {
	question

	pods []*v1.Pod
}

func newUsers() *users {
	return &users{asked: map[string]map[item]question{}, answers: map[item]answer{}}
}

// ask asks for an item. The namespace is that of the claim.
func (u *users) ask(by item, q question) {
	u.mu.Lock()
	defer u.mu.Unlock()
	asked := u.asked[q.claim.Namespace]
	if asked == nil {
		asked = map[item]question{}
		u.asked[q.claim.Namespace] = asked
	}
	asked[by] = q
}

// begin returns the questions about a namespace that were not answered. What is read from now on answers them.
func (u *users) begin(namespace string) map[item]question {
	u.mu.Lock()
	defer u.mu.Unlock()
	asked := u.asked[namespace]
	delete(u.asked, namespace)
	return asked
}

// answer keeps what was read for whoever asked.
func (u *users) answer(by item, a answer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.answers[by] = a
}

// take returns the answer to a question, which is good for once.
func (u *users) take(by item, q question) ([]*v1.Pod, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	a, there := u.answers[by]
	delete(u.answers, by)
	return a.pods, there && a.question == q
}

// drop throws the answer away that an item had no need of: later it would be old.
func (u *users) drop(by item) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.answers, by)
}

// syncUsers answers what is asked about the claims of a namespace.
func (c *Controller) syncUsers(ctx context.Context, namespace string) error {
	questions := c.users.begin(namespace)
	if len(questions) == 0 {
		return nil
	}
	pods, _, err := store.ListOf[*v1.Pod](ctx, c.store, namespace)
	if err != nil {
		for by, q := range questions {
			c.users.ask(by, q)
		}
		return fmt.Errorf("the pods of namespace %q, which may use claims that are to go: %w", namespace, err)
	}
	of := map[types.NamespacedName][]*v1.Pod{}
	for _, pod := range pods {
		for _, claim := range volume.ClaimsOfPod(pod) {
			of[claim] = append(of[claim], pod)
		}
	}
	for _, by := range slices.SortedFunc(maps.Keys(questions), compareItems) {
		q := questions[by]
		c.users.answer(by, answer{question: q, pods: of[q.claim]})
		c.work.queue.Add(by)
	}
	return nil
}
