package charttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
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
}

type mutation struct {
	name     string
	selector labels.Selector
	fail     bool
	matcher  matchconditions.Matcher
	compiled *cel.CompositedCompiler
	patcher  patch.Patcher
}

type validation struct {
	selector  labels.Selector
	warn      bool
	validator validating.Validator
	compiled  *cel.CompositedCompiler
}

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
		result := compiler.CompileAndStoreVariable(&validating.Variable{Name: v.Name, Expression: v.Expression}, opts, environment.NewExpressions)
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
	selectors := map[string]labels.Selector{}
	actions := map[string][]admissionv1.ValidationAction{}
	selector := func(r *admissionv1.MatchResources) labels.Selector {
		s, err := metav1.LabelSelectorAsSelector(r.NamespaceSelector)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, o := range all {
		switch o["kind"] {
		case "MutatingAdmissionPolicyBinding":
			b := decode[admissionv1.MutatingAdmissionPolicyBinding](t, o)
			selectors["m/"+b.Spec.PolicyName] = selector(b.Spec.MatchResources)
		case "ValidatingAdmissionPolicyBinding":
			b := decode[admissionv1.ValidatingAdmissionPolicyBinding](t, o)
			selectors["v/"+b.Spec.PolicyName], actions[b.Spec.PolicyName] = selector(b.Spec.MatchResources), b.Spec.ValidationActions
		}
	}
	for _, o := range all {
		switch o["kind"] {
		case "MutatingAdmissionPolicy":
			p := decode[admissionv1.MutatingAdmissionPolicy](t, o)
			compiler, opts := newCompiler(t, p.Spec.Variables, true)
			m := mutation{
				name: p.Name, selector: selectors["m/"+p.Name], compiled: compiler,
				fail:    *p.Spec.FailurePolicy == admissionv1.Fail,
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
			checks := make([]cel.ExpressionAccessor, len(p.Spec.Validations))
			messages := make([]cel.ExpressionAccessor, len(p.Spec.Validations))
			for i, v := range p.Spec.Validations {
				checks[i] = &validating.ValidationCondition{Expression: v.Expression, Message: v.Message}
				compiles(t, compiler, opts, p.Name, checks[i])
				if v.MessageExpression != "" {
					messages[i] = &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}
					compiles(t, compiler, opts, p.Name, messages[i])
				}
			}
			compile := func(list []cel.ExpressionAccessor) cel.ConditionEvaluator {
				return compiler.CompileCondition(list, opts, environment.NewExpressions)
			}
			e.validating = append(e.validating, validation{
				selector: selectors["v/"+p.Name], compiled: compiler,
				warn: slices.Contains(actions[p.Name], admissionv1.Warn),
				validator: validating.NewValidator(compile(checks),
					conditions(t, compiler, p.Spec.MatchConditions, p.Spec.FailurePolicy, p.Name), compile(nil), compile(messages), p.Spec.FailurePolicy, nil),
			})
		}
	}
	if len(e.mutating) != 2 || len(e.validating) != 2 {
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
	for range 2 { // reinvocationPolicy is IfNeeded: the second time, nothing must be left to do
		for _, m := range e.mutating {
			if !m.selector.Matches(labels.Set(ns.Labels)) {
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
	var refusals, warned []string
	for _, v := range e.validating {
		if !v.selector.Matches(labels.Set(ns.Labels)) {
			continue
		}
		for _, d := range v.validator.Validate(v.compiled.CreateContext(ctx), podResource, attributes(), nil, ns, celconfig.RuntimeCELCostBudget, nil).Decisions {
			if d.Action != validating.ActionDeny {
				continue
			}
			if v.warn {
				warned = append(warned, d.Message)
			} else {
				refusals = append(refusals, d.Message)
			}
		}
	}
	if len(refusals) > 0 {
		return nil, "", errors.New(refusals[0]) // a server tells the first
	}
	return pod, strings.Join(warned, "\n"), nil
}
