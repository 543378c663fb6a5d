package charttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// evaluator takes pods through the chart's policies as an API server does, with
// the API server's own code for expressions, patches and messages. What is left
// out is what the server test shows (server_test.go): defaults, the validation of
// pods, other admission plugins, selectors of other kinds than by labels.
type evaluator struct {
	mutating   []mutation
	validating []validation
	between    func(*corev1.Pod) // what others do to a pod after its policies were asked; nil: nothing
}

type mutation struct {
	name     string
	selector selectors
	fail     bool
	again    bool // when others have changed the pod
	matcher  matchconditions.Matcher
	compiled *cel.CompositedCompiler
	patcher  patch.Patcher
}

type validation struct {
	name     string
	selector selectors
	rules    []admissionv1.NamedRuleWithOperations
	warn     bool
	matcher  matchconditions.Matcher
	compiled *cel.CompositedCompiler
	checks   cel.ConditionEvaluator
	messages cel.ConditionEvaluator // nil entries: texts has it
	texts    []string
}

// selectors are those of a binding.
type selectors struct{ namespace, object labels.Selector }

func (s selectors) match(ns *corev1.Namespace, object map[string]string) bool {
	return s.namespace.Matches(labels.Set(ns.Labels)) && s.object.Matches(labels.Set(object))
}

// expression is one of a policy. (The API server has types for them too, in
// packages that would add a minute to the build of the tests.)
type expression struct {
	name, text string
	is         *celgo.Type
}

func (e expression) GetName() string            { return e.name }
func (e expression) GetExpression() string      { return e.text }
func (e expression) ReturnTypes() []*celgo.Type { return []*celgo.Type{e.is} }

var (
	podKind     = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	podResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
)

func newCompiler(t testing.TB, variables []admissionv1.Variable, hasPatch bool) (*cel.CompositedCompiler, cel.OptionalVariableDeclarations) {
	t.Helper()
	// What the oldest version with MutatingAdmissionPolicy takes from a new policy.
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(version.MajorMinor(1, 34)))
	if err != nil {
		t.Fatal(err)
	}
	opts := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	for _, v := range variables {
		result := compiler.CompileAndStoreVariable(expression{v.Name, v.Expression, celgo.AnyType}, opts, environment.NewExpressions)
		if result.Error != nil {
			t.Fatalf("variable %s: %s", v.Name, result.Error.Detail)
		}
	}
	opts.HasPatchTypes = hasPatch
	return compiler, opts
}

// compiles fails for an expression that no server would take.
func compiles(t testing.TB, compiler *cel.CompositedCompiler, opts cel.OptionalVariableDeclarations, name string, e cel.ExpressionAccessor) {
	t.Helper()
	if result := compiler.CompileCELExpression(e, opts, environment.NewExpressions); result.Error != nil {
		t.Fatalf("%s: %s", name, result.Error.Detail)
	}
}

func conditions(t testing.TB, compiler *cel.CompositedCompiler, list []admissionv1.MatchCondition, policy *admissionv1.FailurePolicyType, name string) matchconditions.Matcher {
	t.Helper()
	opts := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	plain := cel.NewCompiler(environment.MustBaseEnvSet(version.MajorMinor(1, 34))) // a server lets conditions use no variables
	accessors := make([]cel.ExpressionAccessor, len(list))
	for i := range list {
		accessors[i] = (*matchconditions.MatchCondition)(&list[i])
		if result := plain.CompileCELExpression(accessors[i], opts, environment.NewExpressions); result.Error != nil {
			t.Fatalf("condition %s: %s", list[i].Name, result.Error.Detail)
		}
	}
	return matchconditions.NewMatcher(compiler.CompileCondition(accessors, opts, environment.NewExpressions), policy, "policy", "validate", name)
}

// decode makes a rendered object one of its type.
func decode[T any](t testing.TB, o object) *T {
	t.Helper()
	text, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	v := new(T)
	if err := yaml.UnmarshalStrict(text, v); err != nil {
		t.Fatalf("%s %s: %v", o.kind(), o.name(), err)
	}
	return v
}

func newEvaluator(t testing.TB, all []object) *evaluator {
	t.Helper()
	e := &evaluator{}
	bound := map[string]selectors{}
	actions := map[string][]admissionv1.ValidationAction{}
	selector := func(r *admissionv1.MatchResources) selectors {
		namespace, err := metav1.LabelSelectorAsSelector(r.NamespaceSelector)
		object, err2 := metav1.LabelSelectorAsSelector(r.ObjectSelector)
		if err = errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		return selectors{namespace, object}
	}
	for _, o := range all {
		switch o["kind"] {
		case "MutatingAdmissionPolicyBinding":
			b := decode[admissionv1.MutatingAdmissionPolicyBinding](t, o)
			bound["m/"+b.Spec.PolicyName] = selector(b.Spec.MatchResources)
		case "ValidatingAdmissionPolicyBinding":
			b := decode[admissionv1.ValidatingAdmissionPolicyBinding](t, o)
			bound["v/"+b.Spec.PolicyName], actions[b.Spec.PolicyName] = selector(b.Spec.MatchResources), b.Spec.ValidationActions
		}
	}
	for _, o := range all {
		switch o["kind"] {
		case "MutatingAdmissionPolicy":
			p := decode[admissionv1.MutatingAdmissionPolicy](t, o)
			compiler, opts := newCompiler(t, p.Spec.Variables, true)
			m := mutation{
				name: p.Name, selector: bound["m/"+p.Name], compiled: compiler,
				fail:    *p.Spec.FailurePolicy == admissionv1.Fail,
				again:   p.Spec.ReinvocationPolicy == admissionv1.IfNeededReinvocationPolicy,
				matcher: conditions(t, compiler, p.Spec.MatchConditions, p.Spec.FailurePolicy, p.Name),
			}
			if len(p.Spec.Mutations) != 1 {
				t.Fatalf("%s has %d mutations", p.Name, len(p.Spec.Mutations))
			}
			condition := &patch.JSONPatchCondition{Expression: p.Spec.Mutations[0].JSONPatch.Expression}
			compiles(t, compiler, opts, p.Name, condition)
			m.patcher = patch.NewJSONPatcher(compiler.CompileMutatingEvaluator(condition, opts, environment.NewExpressions))
			e.mutating = append(e.mutating, m)
		case "ValidatingAdmissionPolicy":
			p := decode[admissionv1.ValidatingAdmissionPolicy](t, o)
			compiler, opts := newCompiler(t, p.Spec.Variables, false)
			v := validation{
				name: p.Name, selector: bound["v/"+p.Name], compiled: compiler,
				rules:   p.Spec.MatchConstraints.ResourceRules,
				warn:    slices.Contains(actions[p.Name], admissionv1.Warn),
				matcher: conditions(t, compiler, p.Spec.MatchConditions, p.Spec.FailurePolicy, p.Name),
			}
			var checks, messages []cel.ExpressionAccessor
			for _, one := range p.Spec.Validations {
				check := expression{text: one.Expression, is: celgo.BoolType}
				compiles(t, compiler, opts, p.Name, check)
				checks = append(checks, check)
				v.texts = append(v.texts, one.Message)
				var message cel.ExpressionAccessor
				if one.MessageExpression != "" {
					message = expression{text: one.MessageExpression, is: celgo.StringType}
					compiles(t, compiler, opts, p.Name, message)
				}
				messages = append(messages, message)
			}
			v.checks = compiler.CompileCondition(checks, opts, environment.NewExpressions)
			v.messages = compiler.CompileCondition(messages, opts, environment.NewExpressions)
			e.validating = append(e.validating, v)
		}
	}
	if len(e.mutating) < 2 || len(e.validating) < 3 {
		t.Fatalf("%d mutating and %d validating policies", len(e.mutating), len(e.validating))
	}
	return e
}

// admit gives what becomes of a new pod, and the warnings for who made it.
func (e *evaluator) admit(ctx context.Context, ns *corev1.Namespace, pod *corev1.Pod) (_ *corev1.Pod, warnings string, _ error) {
	pod = pod.DeepCopy()
	interfaces := admission.NewObjectInterfacesFromScheme(scheme.Scheme)
	attributes := func() *admission.VersionedAttributes {
		a := admission.NewAttributesRecord(pod, nil, podKind, ns.Name, pod.Name, podResource, "", admission.Create, &metav1.CreateOptions{}, false, nil)
		return &admission.VersionedAttributes{Attributes: a, VersionedObject: admission.NewLazyObject(pod), VersionedKind: podKind}
	}
	for round := range 2 { // where nobody has changed the pod, nothing must be left to do the second time
		if round > 0 && e.between != nil {
			e.between(pod)
		}
		for _, m := range e.mutating {
			if !m.selector.match(ns, pod.Labels) || round > 0 && !m.again {
				continue
			}
			ctx := m.compiled.CreateContext(ctx)
			a := attributes()
			match := m.matcher.Match(ctx, a, nil, nil)
			if match.Error != nil {
				return nil, "", fmt.Errorf("%s: %w", m.name, match.Error)
			}
			if !match.Matches {
				continue
			}
			out, err := m.patcher.Patch(ctx, patch.Request{MatchedResource: podResource, VersionedAttributes: a, ObjectInterfaces: interfaces, Namespace: ns}, celconfig.RuntimeCELCostBudget)
			if err != nil {
				return nil, "", fmt.Errorf("%s: %w", m.name, err)
			}
			pod = out.(*corev1.Pod) //nolint:forcetypeassert // it went in as one
		}
	}
	for _, v := range e.validating {
		refused, err := v.validate(ctx, ns, attributes(), pod.Labels)
		switch {
		case err != nil:
			return nil, "", fmt.Errorf("%s: %w", v.name, err)
		case len(refused) > 0 && !v.warn:
			return nil, "", errors.New(told(refused)[0]) // a server tells the first
		default:
			warnings += strings.Join(told(refused), "\n")
		}
	}
	return pod, warnings, nil
}

// validate gives the messages of the validations that refuse.
func (v validation) validate(ctx context.Context, ns *corev1.Namespace, a *admission.VersionedAttributes, object map[string]string) (refused []string, _ error) {
	resource := a.GetResource()
	if !v.selector.match(ns, object) || !slices.ContainsFunc(v.rules, func(r admissionv1.NamedRuleWithOperations) bool {
		return slices.Contains(r.APIGroups, resource.Group) && slices.Contains(r.Resources, resource.Resource) && slices.Contains(r.Operations, admissionv1.OperationType(a.GetOperation()))
	}) {
		return nil, nil
	}
	if resource.Resource == "namespaces" {
		ns = nil // it is in none
	}
	ctx = v.compiled.CreateContext(ctx)
	if match := v.matcher.Match(ctx, a, nil, nil); match.Error != nil || !match.Matches {
		return nil, match.Error
	}
	request := cel.CreateAdmissionRequest(a.Attributes, metav1.GroupVersionResource(resource), metav1.GroupVersionKind(a.GetKind()))
	results, _, err := v.checks.ForInput(ctx, a, request, cel.OptionalVariableBindings{}, ns, celconfig.RuntimeCELCostBudget)
	if err != nil {
		return nil, err
	}
	messages, _, err := v.messages.ForInput(ctx, a, request, cel.OptionalVariableBindings{}, ns, celconfig.RuntimeCELCostBudget)
	if err != nil {
		return nil, err
	}
	for i, r := range results {
		switch {
		case r.Error != nil:
			return nil, r.Error
		case r.EvalResult == types.True:
		case v.texts[i] != "":
			refused = append(refused, v.texts[i])
		case messages[i].Error != nil:
			return nil, messages[i].Error
		default:
			refused = append(refused, fmt.Sprint(messages[i].EvalResult.Value()))
		}
	}
	return refused, nil
}

// told are messages as a server gives them: in place of one that is too long or has several
// lines it shows the expression.
func told(messages []string) []string {
	out := slices.Clone(messages)
	for i, m := range out {
		if m = strings.TrimSpace(m); m == "" || len(m) > celconfig.MaxEvaluatedMessageExpressionSizeBytes || strings.Contains(m, "\n") {
			out[i] = "failed expression"
		}
	}
	return out
}

// hints are the warnings for whoever writes an object that is no pod.
func (e *evaluator) hints(t *testing.T, ns *corev1.Namespace, resource schema.GroupVersionResource, kind string, object runtime.Object, meta metav1.ObjectMeta) string {
	t.Helper()
	var all []string
	for _, v := range e.validating {
		record := admission.NewAttributesRecord(object, nil, resource.GroupVersion().WithKind(kind), meta.Namespace, meta.Name, resource, "", admission.Update, &metav1.UpdateOptions{}, false, nil)
		a := &admission.VersionedAttributes{Attributes: record, VersionedObject: admission.NewLazyObject(object), VersionedKind: resource.GroupVersion().WithKind(kind)}
		refused, err := v.validate(t.Context(), ns, a, meta.Labels)
		if err != nil {
			t.Fatal(err)
		}
		if len(refused) > 0 && !v.warn {
			t.Errorf("%s refuses: %s", v.name, refused)
		}
		all = append(all, told(refused)...)
	}
	return strings.Join(all, "\n")
}
